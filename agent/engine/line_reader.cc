// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/line_reader.h"

#include <cerrno>
#include <cstring>

namespace mapgate::engine {

std::expected<LineReader, std::string> LineReader::open(const std::string& path,
                                                        std::size_t max_line, Part part) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::unexpected(std::string("cannot be opened: ") + std::strerror(errno));
  LineReader reader(std::move(stream), max_line, part);
  if (part.begin == 0) return reader;
  // The line that the byte before belongs to is another part's, and if it is too long, its fault.
  reader.offset_ = part.begin - 1;
  reader.stream_.seekg(static_cast<std::streamoff>(reader.offset_));
  reader.part_.end = UINT64_MAX;
  const auto line = reader.next();
  reader.part_.end = line && *line ? part.end : 0;
  return reader;
}

std::expected<std::optional<std::string_view>, std::string> LineReader::next() {
  while (offset_ < part_.end) {
    const std::string_view left(buffer_.data() + start_, end_ - start_);
    std::size_t length = left.find('\n');
    const bool complete = length != std::string_view::npos;
    if (!complete) length = left.size();
    if (length > max_line_)
      return std::unexpected("the line has more than " + std::to_string(max_line_) + " bytes");
    if (complete || (at_end_ && !left.empty())) {
      const std::size_t taken = length + (complete ? 1 : 0);
      start_ += taken;
      offset_ += taken;
      return left.substr(0, length);
    }
    if (at_end_) return std::nullopt;
    if (auto filled = fill(); !filled) return std::unexpected(std::move(filled.error()));
  }
  return std::nullopt;
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
