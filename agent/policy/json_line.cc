// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/json_line.h"

#include <cstddef>
#include <cstdint>

namespace mapgate::policy {
namespace {

using Kind = DocumentNode::Kind;

constexpr unsigned kMaxPlainDepth = 8;
constexpr std::size_t kMaxPlainDigits = 18;  // of what surely fits 64 bits

// Reads what nearly every line consists of: ASCII without escapes, integers, little depth. Gives up
// on all else, faults included, which are for parse_json() to explain.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : text_(text) {}

  bool read(DocumentNode& root) {
    if (!value(root, 0)) return false;
    skip_space();
    return at_ == text_.size();
  }

 private:
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') ++at_;
  }
  [[nodiscard]] Location here() const {
    return {.line = 1, .column = static_cast<unsigned>(at_) + 1};
  }

  bool value(DocumentNode& node, unsigned depth) {
    skip_space();
    node.location = here();
    node.boolean = false;
    node.integer = 0;
    const char first = peek();
    if (first == '{') return depth < kMaxPlainDepth && mapping(node, depth);
    if (first == '[') return depth < kMaxPlainDepth && list(node, depth);
    node.items.clear();
    node.keys.clear();
    node.text.clear();
    if (first == '"') {
      node.kind = Kind::kString;
      return string(node.text);
    }
    if (first == 't' || first == 'f') return boolean(node);
    return integer(node);
  }

  bool mapping(DocumentNode& node, unsigned depth) {
    start(node, Kind::kMapping);
    std::size_t count = 0;
    skip_space();
    if (take('}')) return finish(node, 0, 0);
    do {
      skip_space();
      if (node.keys.size() == count) node.keys.emplace_back();
      node.keys[count].location = here();
      if (!string(node.keys[count].text)) return false;
      skip_space();
      if (!take(':')) return false;
      if (node.items.size() == count) node.items.emplace_back();
      if (!value(node.items[count++], depth + 1)) return false;
      skip_space();
    } while (take(','));
    return take('}') && finish(node, count, count);
  }

  bool list(DocumentNode& node, unsigned depth) {
    start(node, Kind::kList);
    std::size_t count = 0;
    skip_space();
    if (take(']')) return finish(node, 0, 0);
    do {
      if (node.items.size() == count) node.items.emplace_back();
      if (!value(node.items[count++], depth + 1)) return false;
      skip_space();
    } while (take(','));
    return take(']') && finish(node, count, 0);
  }

  void start(DocumentNode& node, Kind kind) {
    node.kind = kind;
    node.text.clear();
    ++at_;
  }
  // What the document before had more.
  static bool finish(DocumentNode& node, std::size_t items, std::size_t keys) {
    node.items.resize(items);
    node.keys.resize(keys);
    return true;
  }

  bool string(std::string& text) {
    if (!take('"')) return false;
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (c < ' ' || c > '~' || c == '\\') return false;
    }
    text.assign(text_, start, at_ - start);
    return take('"');
  }

  bool boolean(DocumentNode& node) {
    node.kind = Kind::kBoolean;
    node.boolean = peek() == 't';
    const std::string_view word = node.boolean ? "true" : "false";
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool integer(DocumentNode& node) {
    node.kind = Kind::kInteger;
    const bool negative = take('-');
    const std::size_t start = at_;
    std::int64_t number = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      if (at_ - start == kMaxPlainDigits) return false;
      number = number * 10 + (peek() - '0');
    }
    const std::size_t digits = at_ - start;
    if (digits == 0 || (digits > 1 && text_[start] == '0')) return false;
    if (peek() == '.' || peek() == 'e' || peek() == 'E') return false;
    node.integer = negative ? -number : number;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::expected<const DocumentNode*, DocumentError> JsonLineParser::parse(std::string_view line) {
  if (PlainReader(line).read(document_)) return &document_;
  auto document = parse_json(line);
  if (!document) return std::unexpected(std::move(document.error()));
  document_ = std::move(*document);
  return &document_;
}

}  // namespace mapgate::policy
