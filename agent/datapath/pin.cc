// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/pin.h"

#include <bpf/bpf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace mapgate::datapath {

namespace fs = std::filesystem;

Result<ino_t> replace_pin(int fd, const fs::path& path) {
  // A bpffs name must not hold a dot.
  const fs::path fresh = path.string() + "_new";
  ::unlink(fresh.c_str());
  if (bpf_obj_pin(fd, fresh.c_str()) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return std::unexpected(system_error("pin " + path.string(), error));
  }
  return pin_inode(path);
}

ino_t pin_inode(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

Result<void> make_directory(const fs::path& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};
  if (errno != ENOENT || !directory.has_relative_path())
    return std::unexpected(system_error("make " + directory.string(), errno));
  if (auto made = make_directory(directory.parent_path()); !made) return made;
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return std::unexpected(system_error("make " + directory.string(), errno));
}

}  // namespace mapgate::datapath
