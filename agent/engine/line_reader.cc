// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/line_reader.h"

#include <cstring>
#include <span>

namespace mapgate::engine {

std::expected<LineReader, std::string> LineReader::open(const std::string& path,
                                                        std::size_t max_line, Part part) {
  auto file = policy::RegularFile::open(path);
  if (!file) return std::unexpected(std::move(file.error()));
  LineReader reader(std::move(*file), max_line, part);
  if (part.begin == 0) return reader;
  // The line that the byte before belongs to is another part's, and if it is too long, its fault.
  reader.offset_ = reader.read_offset_ = part.begin - 1;
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
  const std::span<char> room = std::span(buffer_).subspan(end_);
  const auto count = file_.read(read_offset_, room);
  if (!count) return std::unexpected(count.error());
  read_offset_ += *count;
  end_ += *count;
  at_end_ = *count < room.size();
  return {};
}

}  // namespace mapgate::engine
