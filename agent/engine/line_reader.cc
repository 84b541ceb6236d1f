// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/line_reader.h"

#include <cerrno>
#include <cstring>

namespace mapgate::engine {

std::expected<LineReader, std::string> LineReader::open(const std::string& path,
                                                        std::size_t max_line) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::unexpected(std::string("cannot be opened: ") + std::strerror(errno));
  return LineReader(std::move(stream), max_line);
}

std::expected<std::optional<std::string_view>, std::string> LineReader::next() {
  for (;;) {
    const std::string_view left(buffer_.data() + start_, end_ - start_);
    std::size_t length = left.find('\n');
    const bool complete = length != std::string_view::npos;
    if (!complete) length = left.size();
    if (length > max_line_)
      return std::unexpected("the line has more than " + std::to_string(max_line_) + " bytes");
    if (complete || (at_end_ && !left.empty())) {
      start_ += length + (complete ? 1 : 0);
      return left.substr(0, length);
    }
    if (at_end_) return std::nullopt;
    if (auto filled = fill(); !filled) return std::unexpected(std::move(filled.error()));
  }
}

std::expected<void, std::string> LineReader::fill() {
  std::memmove(buffer_.data(), buffer_.data() + start_, end_ - start_);
  end_ -= start_;
  start_ = 0;
  stream_.read(buffer_.data() + end_, static_cast<std::streamsize>(buffer_.size() - end_));
  if (stream_.bad()) return std::unexpected(std::string("cannot be read: ") + std::strerror(errno));
  end_ += static_cast<std::size_t>(stream_.gcount());
  at_end_ = stream_.eof();
  return {};
}

}  // namespace mapgate::engine
