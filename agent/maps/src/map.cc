// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <bpf/bpf.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace mapgate::maps {
namespace {

MapError failure(std::string step, std::string name, int code) {
  return {std::move(step), std::move(name), code, describe_errno(code)};
}

// A pin may also be a program or a link, whose info would be read as nonsense.
bool is_map(int fd) {
  std::array<char, 64> target{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(length)) == "anon_inode:bpf-map";
}

// Takes over `fd`.
std::expected<Map, MapError> describe(int fd, const std::string& step, const std::string& name,
                                      std::string pin_path) {
  Map map(fd, {}, std::move(pin_path));
  if (!is_map(fd)) return std::unexpected(MapError{step, name, EINVAL, "is not a BPF map"});
  bpf_map_info raw{};
  std::uint32_t size = sizeof raw;
  if (const int error = -bpf_obj_get_info_by_fd(fd, &raw, &size); error != 0)
    return std::unexpected(failure("read info of map", name, error));
  MapInfo info{.id = raw.id,
               .type = static_cast<bpf_map_type>(raw.type),
               .key_size = raw.key_size,
               .value_size = raw.value_size,
               .max_entries = raw.max_entries,
               .flags = raw.map_flags,
               .name = raw.name};
  std::string path = map.pin_path();
  map.abandon();
  return Map(fd, std::move(info), std::move(path));
}

// The kernel says EACCES for a folder and for a file of another filesystem.
std::string why_no_pin(const std::string& path, int code) {
  struct stat status {};
  if (code == ENOENT || stat(path.c_str(), &status) != 0) return describe_errno(code);
  if (S_ISDIR(status.st_mode)) return "is a folder, and no pin";
  if (!is_bpf_filesystem(path)) return "is no pin: it is not on a BPF filesystem";
  return describe_errno(code);
}

}  // namespace

bool are_made_alike(const MapInfo& a, const MapInfo& b) {
  return a.type == b.type && a.key_size == b.key_size && a.value_size == b.value_size &&
         a.max_entries == b.max_entries && a.flags == b.flags;
}

std::string describe_map(const MapInfo& info) {
  std::ostringstream text;
  text << describe_type(info.type) << ", keys of " << info.key_size << " and values of "
       << info.value_size << " bytes, " << info.max_entries << " entries, flags 0x" << std::hex
       << info.flags;
  return text.str();
}

bool is_bpf_filesystem(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path there = std::filesystem::absolute(path, ignored);
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path())
    there = there.parent_path();
  struct statfs status {};
  return statfs(there.c_str(), &status) == 0 &&
         static_cast<std::uint32_t>(status.f_type) == std::uint32_t{BPF_FS_MAGIC};
}

Map::Map(int fd, MapInfo info, std::string pin_path)
    : fd_(fd), info_(std::move(info)), pin_path_(std::move(pin_path)) {}

Map::Map(Map&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      info_(std::move(other.info_)),
      pin_path_(std::move(other.pin_path_)) {}

Map& Map::operator=(Map&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(info_, other.info_);
  std::swap(pin_path_, other.pin_path_);
  return *this;
}

Map::~Map() {
  if (fd_ >= 0) close(fd_);
}

std::expected<Map, MapError> Map::create(const MapInfo& info, const Map* inner) {
  LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = info.flags);
  if (inner != nullptr) options.inner_map_fd = static_cast<std::uint32_t>(inner->fd());
  const int fd = bpf_map_create(info.type, info.name.c_str(), info.key_size, info.value_size,
                                info.max_entries, &options);
  if (fd < 0)
    return std::unexpected(MapError{"create map", info.name, -fd,
                                    // EINVAL may be about any of it.
                                    describe_errno(-fd) + " (" + describe_map(info) + ")"});
  return describe(fd, "create map", info.name, {});
}

std::expected<Map, MapError> Map::open_pin(const std::string& path) {
  const int fd = bpf_obj_get(path.c_str());
  if (fd < 0) return std::unexpected(MapError{"open pin", path, -fd, why_no_pin(path, -fd)});
  return describe(fd, "open pin", path, path);
}

std::expected<Map, MapError> Map::open_id(std::uint32_t id) {
  const std::string name = "id " + std::to_string(id);
  const int fd = bpf_map_get_fd_by_id(id);
  if (fd < 0) return std::unexpected(failure("open map", name, -fd));
  return describe(fd, "open map", name, {});
}

std::expected<Map, MapError> Map::from_fd(int fd) {
  const std::string name = "fd " + std::to_string(fd);
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return std::unexpected(failure("duplicate map", name, errno));
  return describe(copy, "duplicate map", name, {});
}

std::expected<void, MapError> Map::pin(const std::string& path) {
  if (const int error = -bpf_obj_pin(fd_, path.c_str()); error != 0)
    return std::unexpected(failure("pin map at", path, error));
  pin_path_ = path;
  return {};
}

std::expected<void, MapError> Map::replace_pin(const std::string& path) {
  // No dots: bpffs reserves names that have one.
  const std::string temporary = path + "_new_" + std::to_string(getpid());
  if (auto pinned = pin(temporary); !pinned) return pinned;
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    (void)unpin();
    return std::unexpected(failure("replace pin", path, error));
  }
  pin_path_ = path;
  return {};
}

std::expected<void, MapError> Map::unpin() {
  if (unlink(pin_path_.c_str()) != 0)
    return std::unexpected(failure("unpin map at", pin_path_, errno));
  pin_path_.clear();
  return {};
}

std::expected<void, MapError> Map::check_pin(const std::string& path) const {
  const auto pinned = open_pin(path);
  if (!pinned) return std::unexpected(pinned.error());
  if (pinned->info().id == info_.id) return {};
  return std::unexpected(MapError{"check pin", path, EEXIST,
                                  "is map " + std::to_string(pinned->info().id) + ", not map " +
                                      std::to_string(info_.id) + " (\"" + info_.name + "\")"});
}

}  // namespace mapgate::maps
