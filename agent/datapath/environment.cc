// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/environment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <mapgate/maps/map.h>

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

// exportfs' type of a kernfs handle; its eight bytes are the id. Not in the UAPI headers of
// Debian 12.
constexpr int kKernfsHandle = 0xfe;

struct KernfsHandle {
  file_handle header;
  std::uint64_t id;
};
static_assert(sizeof(KernfsHandle) == sizeof(file_handle) + sizeof(std::uint64_t));

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

Result<fs::path> find_cgroup2_root() {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    // id parent device root mount-point options [optional...] - type source options
    std::istringstream fields(line);
    std::string skipped, mount_point, field;
    fields >> skipped >> skipped >> skipped >> skipped >> mount_point;
    while (fields >> field && field != "-") {
    }
    if (fields >> field && field == "cgroup2") return fs::path(unescape(mount_point));
  }
  return std::unexpected(
      Error{"find the cgroup v2 hierarchy", ENOENT,
            "no cgroup2 file system is mounted (mount -t cgroup2 none /sys/fs/cgroup)"});
}

Result<void> check_bpffs(const fs::path& directory) {
  if (maps::is_bpf_filesystem(directory)) return {};
  return std::unexpected(Error{"use " + directory.string(), ENODEV,
                               "it is not on a bpffs (mount -t bpf bpf /sys/fs/bpf)"});
}

Result<void> ensure_bpffs(const fs::path& mount_point) {
  if (maps::is_bpf_filesystem(mount_point)) return {};
  if (::mount("bpf", mount_point.c_str(), "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") !=
      0)
    return std::unexpected(system_error("mount a bpffs at " + mount_point.string(), errno));
  return {};
}

Result<std::uint64_t> cgroup_id(const fs::path& cgroup) {
  const std::string step = "open cgroup " + cgroup.string();
  struct statfs info {};
  if (::statfs(cgroup.c_str(), &info) != 0) return std::unexpected(system_error(step, errno));
  // Not every other file system has handles, so this comes first.
  if (info.f_type != CGROUP2_SUPER_MAGIC)
    return std::unexpected(Error{step, EINVAL, "not a directory of a cgroup v2 hierarchy"});
  KernfsHandle handle{};
  handle.header.handle_bytes = sizeof handle.id;
  int mount_id = 0;
  if (::name_to_handle_at(AT_FDCWD, cgroup.c_str(), &handle.header, &mount_id, 0) != 0)
    return std::unexpected(system_error(step, errno));
  return handle.id;
}

Result<UniqueFd> open_cgroup(const fs::path& cgroup_root, std::uint64_t id) {
  const std::string step = "open cgroup " + std::to_string(id);
  UniqueFd root(::open(cgroup_root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return std::unexpected(system_error("open " + cgroup_root.string(), errno));
  KernfsHandle handle{};
  handle.header.handle_bytes = sizeof handle.id;
  handle.header.handle_type = kKernfsHandle;
  handle.id = id;
  UniqueFd cgroup(
      ::open_by_handle_at(root.get(), &handle.header, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!cgroup) return std::unexpected(system_error(step, errno));
  return cgroup;
}

fs::path cgroup_path(const fs::path& cgroup_root, std::uint64_t id) {
  Result<UniqueFd> cgroup = open_cgroup(cgroup_root, id);
  if (!cgroup) return {};
  std::error_code error;
  fs::path path = fs::read_symlink("/proc/self/fd/" + std::to_string(cgroup->get()), error);
  return error ? fs::path() : path;
}

}  // namespace mapgate::datapath
