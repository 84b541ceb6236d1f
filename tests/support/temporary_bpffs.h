// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace mapgate::test {

// A directory of this test's own on the bpffs at /sys/fs/bpf, removed with all its pins.
class TemporaryBpffsDirectory {
 public:
  // Throws std::system_error if it cannot be made.
  TemporaryBpffsDirectory();
  TemporaryBpffsDirectory(const TemporaryBpffsDirectory&) = delete;
  TemporaryBpffsDirectory& operator=(const TemporaryBpffsDirectory&) = delete;
  ~TemporaryBpffsDirectory();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace mapgate::test
