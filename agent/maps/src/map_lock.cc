// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_lock.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mapgate::maps {
namespace {

namespace fs = std::filesystem;

// Returns 0 or the errno.
int set_lock(int fd, std::uint32_t map_id, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = map_id;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

bool is_number(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Does this descriptor, by its text in fdinfo, lock this map?
bool locks_map(const fs::path& fdinfo, std::uint32_t map_id) {
  const std::string id = "map_id:\t" + std::to_string(map_id);
  std::ifstream file(fdinfo);
  bool is_map = false;
  bool is_locked = false;
  for (std::string line; std::getline(file, line);) {
    is_map = is_map || line == id;
    is_locked = is_locked || line.starts_with("lock:");
  }
  return is_map && is_locked;
}

struct Search {
  std::optional<pid_t> holder;
  bool complete = true;  // every process was looked at
};

void search_process(const fs::path& process, std::uint32_t map_id, Search& search) {
  std::error_code error;
  fs::directory_iterator descriptors(process / "fd", error);
  for (; !error && descriptors != fs::directory_iterator(); descriptors.increment(error)) {
    const fs::path target = fs::read_symlink(descriptors->path(), error);
    if (error || target != "anon_inode:bpf-map") continue;
    if (locks_map(process / "fdinfo" / descriptors->path().filename(), map_id))
      search.holder = static_cast<pid_t>(std::stol(process.filename()));
  }
  if (error == std::errc::permission_denied || error == std::errc::operation_not_permitted)
    search.complete = false;
}

// Other process namespaces do not show everybody. The inode of the initial one is ABI.
bool sees_all_processes() {
  constexpr ino_t kInitialNamespace = 0xEFFFFFFC;
  struct stat own {};
  return stat("/proc/self/ns/pid", &own) == 0 && own.st_ino == kInitialNamespace;
}

Search find_holder(std::uint32_t map_id) {
  Search search{.holder = std::nullopt, .complete = sees_all_processes()};
  std::error_code error;
  fs::directory_iterator processes("/proc", error);
  for (; !error && processes != fs::directory_iterator(); processes.increment(error)) {
    if (search.holder) break;
    if (is_number(processes->path().filename())) search_process(processes->path(), map_id, search);
  }
  if (error) search.complete = false;
  return search;
}

std::string describe_process(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return "process " + std::to_string(pid) + (name.empty() ? "" : " (" + name + ")");
}

MapError busy(const Map& map, const std::string& holder) {
  return {"lock map", map.pin_path().empty() ? map.info().name : map.pin_path(), EBUSY,
          holder + " writes this map (id " + std::to_string(map.info().id) + ")"};
}

// Returns the error, or none: no holder of the map itself is in the way.
std::optional<MapError> conflict(const Map& map) {
  const Search search = find_holder(map.info().id);
  if (search.holder) return busy(map, describe_process(*search.holder));
  if (search.complete) return std::nullopt;
  return busy(map, "a process that cannot be seen from here");
}

}  // namespace

std::expected<MapLock, MapError> MapLock::acquire(const Map& map) {
  const std::string& name = map.pin_path().empty() ? map.info().name : map.pin_path();
  const int fd = fcntl(map.fd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return std::unexpected(MapError{"lock map", name, errno, describe_errno(errno)});
  MapLock lock(fd, map.info().id);
  int error = set_lock(fd, lock.map_id_, F_WRLCK);
  if (error == EAGAIN || error == EACCES) {
    if (auto held = conflict(map)) return std::unexpected(std::move(*held));
    // The holder may have ended while it was looked for; else it is nobody who writes the map.
    error = set_lock(fd, lock.map_id_, F_WRLCK);
    if (error == EAGAIN || error == EACCES) return lock;
  }
  if (error != 0) return std::unexpected(MapError{"lock map", name, error, describe_errno(error)});
  return lock;
}

MapLock::MapLock(MapLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), map_id_(other.map_id_) {}

MapLock& MapLock::operator=(MapLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(map_id_, other.map_id_);
  return *this;
}

MapLock::~MapLock() {
  if (fd_ < 0) return;
  // Closing is not enough: duplicates of the descriptor would keep the lock.
  (void)set_lock(fd_, map_id_, F_UNLCK);
  close(fd_);
}

}  // namespace mapgate::maps
