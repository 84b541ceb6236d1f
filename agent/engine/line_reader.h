// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <expected>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mapgate::engine {

// The lines of a file, in bounded memory.
class LineReader {
 public:
  // The error is one line for people.
  [[nodiscard]] static std::expected<LineReader, std::string> open(const std::string& path,
                                                                   std::size_t max_line);

  // The next line without its end, valid until the next call; nothing behind the last one. An error
  // ends the reading: the file cannot be read, or a line is longer than it may be.
  [[nodiscard]] std::expected<std::optional<std::string_view>, std::string> next();

 private:
  LineReader(std::ifstream stream, std::size_t max_line)
      : stream_(std::move(stream)), max_line_(max_line), buffer_(kChunk + max_line + 1) {}
  // Moves what is left to the front, and reads on behind it.
  [[nodiscard]] std::expected<void, std::string> fill();

  static constexpr std::size_t kChunk = std::size_t{1} << 20;

  std::ifstream stream_;
  std::size_t max_line_;
  std::vector<char> buffer_;
  std::size_t start_ = 0;  // of what has not been handed out
  std::size_t end_ = 0;
  bool at_end_ = false;
};

}  // namespace mapgate::engine
