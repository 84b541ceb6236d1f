// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/policy/regular_file.h"

namespace mapgate::engine {

// The lines of a file, or of a part of it, in bounded memory.
class LineReader {
 public:
  // Bytes of the file. Parts that lie side by side have each line once: the one that has its first
  // byte.
  struct Part {
    std::uint64_t begin = 0;
    std::uint64_t end = UINT64_MAX;
  };

  // The error is one line for people.
  [[nodiscard]] static std::expected<LineReader, std::string> open(const std::string& path,
                                                                   std::size_t max_line, Part part);

  // The next line without its end, valid until the next call; nothing behind the last one. An error
  // ends the reading: the file cannot be read, or a line is longer than it may be.
  [[nodiscard]] std::expected<std::optional<std::string_view>, std::string> next();

 private:
  LineReader(policy::RegularFile file, std::size_t max_line, Part part)
      : file_(std::move(file)), max_line_(max_line), part_(part), buffer_(kChunk + max_line + 1) {}
  // Moves what is left to the front, and reads on behind it.
  [[nodiscard]] std::expected<void, std::string> fill();

  static constexpr std::size_t kChunk = std::size_t{1} << 20;

  policy::RegularFile file_;
  std::size_t max_line_;
  Part part_;
  std::uint64_t offset_ = 0;       // in the file, of what has not been handed out
  std::uint64_t read_offset_ = 0;  // in the file, of what has not been read
  std::vector<char> buffer_;
  std::size_t start_ = 0;  // of what has not been handed out
  std::size_t end_ = 0;
  bool at_end_ = false;
};

}  // namespace mapgate::engine
