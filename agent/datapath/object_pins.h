// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// The pins of an object's maps and programs: <directory>/maps/<name>, <directory>/programs/<name>.
// They outlive this. Not thread-safe.
class ObjectPins {
 public:
  explicit ObjectPins(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Every map and program of `object` is pinned from now on, in place of what was there. The object
  // must be loaded, and outlive this or the next pin().
  [[nodiscard]] Result<void> pin(const bpf_object* object);

  // Looks whether the pins are still there and the same; pins again what is not. Returns what that
  // was, one line each; `problems` gets what could not be put right.
  [[nodiscard]] std::vector<std::string> repair(std::vector<std::string>& problems);

 private:
  struct Pin {
    int fd = -1;  // the object's
    ino_t inode = 0;
  };
  [[nodiscard]] Result<void> pin(int fd, const std::filesystem::path& path);

  std::filesystem::path directory_;
  std::map<std::filesystem::path, Pin> pins_;
};

}  // namespace mapgate::datapath
