// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <filesystem>

#include "agent/state/store.h"

namespace mapgate::state {

// While it lives, no other process has this directory's state, see flock(2). Leaves no file.
class DirectoryLock {
 public:
  // kBusy: another process has it. A directory that cannot be opened is not locked, and no error:
  // opening the database says what is wrong.
  [[nodiscard]] static std::expected<DirectoryLock, StoreError> acquire(
      const std::filesystem::path& directory);

  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace mapgate::state
