// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <utility>

#include "agent/unique_fd.h"

namespace mapgate::policy {

// A file that is open for reading. Nothing here waits for anybody else: a FIFO, a device, a socket
// or a directory is refused instead. Errors are one line for people. Move-only, not thread-safe.
class RegularFile {
 public:
  [[nodiscard]] static std::expected<RegularFile, std::string> open(const std::string& path);

  // In bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // The bytes from `offset` on. Fewer than asked for: the file ends there.
  [[nodiscard]] std::expected<std::size_t, std::string> read(std::uint64_t offset,
                                                             std::span<char> buffer) const;

 private:
  RegularFile(UniqueFd fd, std::uint64_t size) : fd_(std::move(fd)), size_(size) {}

  UniqueFd fd_;
  std::uint64_t size_;
};

}  // namespace mapgate::policy
