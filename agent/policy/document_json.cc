// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/policy/document.h"

namespace mapgate::policy {
namespace {

// Says how far the parser has read: its callbacks come without a place.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}

  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  friend bool operator==(const TrackingIterator& a, const TrackingIterator& b) {
    return a.at_ == b.at_;
  }

 private:
  const char* at_;
  const char** furthest_;
};

// Turns offsets, which only grow, into lines and columns.
class LineCounter {
 public:
  explicit LineCounter(std::string_view text) : text_(text) {}

  Location advance(std::size_t offset) {
    for (; at_ < offset && at_ < text_.size(); ++at_) {
      if (text_[at_] == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      }
    }
    return {.line = line_, .column = static_cast<unsigned>(at_ - line_start_) + 1};
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_start_ = 0;
  unsigned line_ = 1;
};

class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonHandler(std::string_view text) : text_(text), furthest_(text.data()), lines_(text) {}

  [[nodiscard]] TrackingIterator begin() { return {text_.data(), &furthest_}; }
  [[nodiscard]] TrackingIterator end() { return {text_.data() + text_.size(), &furthest_}; }
  [[nodiscard]] DocumentNode finish() && { return std::move(builder_).finish(); }

  bool null() override {
    return add(DocumentNode::Kind::kNull, [](DocumentNode&) {});
  }
  bool boolean(bool value) override {
    return add(DocumentNode::Kind::kBoolean, [&](DocumentNode& node) { node.boolean = value; });
  }
  bool number_integer(number_integer_t value) override {
    return add(DocumentNode::Kind::kInteger, [&](DocumentNode& node) { node.integer = value; });
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > std::numeric_limits<std::int64_t>::max())
      return add_other_number(std::to_string(value));
    return number_integer(static_cast<number_integer_t>(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return add_other_number(text);
  }
  bool string(string_t& value) override {
    return add(DocumentNode::Kind::kString,
               [&](DocumentNode& node) { node.text = std::move(value); });
  }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return begin_node(DocumentNode::Kind::kMapping); }
  bool start_array(std::size_t) override { return begin_node(DocumentNode::Kind::kList); }
  bool end_object() override { return end_node(); }
  bool end_array() override { return end_node(); }
  bool key(string_t& value) override {
    const Location location = token_location();
    builder_.key(std::move(value), location);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": the
    // place is ours.
    std::string_view reason = exception.what();
    const std::size_t place = reason.find("column ");
    if (const std::size_t colon = reason.find(": ", place);
        place != reason.npos && colon != reason.npos) {
      reason.remove_prefix(colon + 2);
    }
    throw DocumentRefused(
        {lines_.advance(position > 0 ? position - 1 : 0), "not JSON: " + std::string(reason)});
  }

 private:
  // Where the token begins that the parser has just read: behind the one before and what may stand
  // between them.
  Location token_location() {
    const std::size_t start = text_.find_first_not_of(" \t\r\n,:]}", token_end_);
    token_end_ = static_cast<std::size_t>(furthest_ - text_.data());
    return lines_.advance(start);
  }
  template <typename Fill>
  bool add(DocumentNode::Kind kind, Fill fill) {
    DocumentNode node;
    node.kind = kind;
    node.location = token_location();
    fill(node);
    builder_.add(std::move(node));
    return true;
  }
  bool add_other_number(const std::string& text) {
    return add(DocumentNode::Kind::kOtherNumber, [&](DocumentNode& node) { node.text = text; });
  }
  bool begin_node(DocumentNode::Kind kind) {
    builder_.begin(kind, token_location());
    return true;
  }
  bool end_node() {
    builder_.end();
    return true;
  }

  std::string_view text_;
  const char* furthest_;
  std::size_t token_end_ = 0;
  LineCounter lines_;
  DocumentBuilder builder_;
};

}  // namespace

std::expected<DocumentNode, DocumentError> parse_json(std::string_view text) {
  JsonHandler handler(text);
  try {
    // The handler throws rather than end the parsing by returning false.
    static_cast<void>(nlohmann::json::sax_parse(handler.begin(), handler.end(), &handler));
    return std::move(handler).finish();
  } catch (const DocumentRefused& refused) {
    return std::unexpected(refused.error());
  }
}

}  // namespace mapgate::policy
