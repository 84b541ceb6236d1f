// SPDX-License-Identifier: Apache-2.0
#include "agent/state/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace mapgate::state {

std::expected<DirectoryLock, StoreError> DirectoryLock::acquire(
    const std::filesystem::path& directory) {
  DirectoryLock lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.fd_ >= 0 && ::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return std::unexpected(StoreError{
        StoreErrorKind::kBusy, directory.native() + ": another mapgated keeps its state here"});
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace mapgate::state
