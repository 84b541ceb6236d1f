// SPDX-License-Identifier: Apache-2.0
// What YAML and JSON have in common, with places, so that a spec is checked by the same code. For
// agent/policy, and for agent/schema, which reads the entries of declared maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mapgate::policy {

struct Location {
  unsigned line = 0;  // from 1
  unsigned column = 0;

  friend auto operator<=>(const Location&, const Location&) = default;
};

struct DocumentKey {
  std::string text;
  Location location;

  friend bool operator==(const DocumentKey&, const DocumentKey&) = default;
};

struct DocumentNode {
  enum class Kind { kNull, kBoolean, kInteger, kOtherNumber, kString, kList, kMapping };

  Kind kind = Kind::kNull;
  Location location;
  bool boolean = false;
  std::int64_t integer = 0;
  std::string text;                 // of a string; of another number the number as it is written
  std::vector<DocumentNode> items;  // of a list; of a mapping the values
  std::vector<DocumentKey> keys;    // of a mapping, one per item; may repeat

  friend bool operator==(const DocumentNode&, const DocumentNode&) = default;
};

struct DocumentError {
  Location location;
  std::string reason;
};

inline constexpr std::size_t kMaxDocumentDepth = 32;
inline constexpr std::size_t kMaxDocumentNodes = 1U << 20;

// Both refuse documents that are deeper or larger than that.
[[nodiscard]] std::expected<DocumentNode, DocumentError> parse_json(std::string_view text);
// One document of YAML 1.2 with the core schema's null, booleans and decimal numbers. No anchors,
// aliases or tags: they make places ambiguous and small texts large.
[[nodiscard]] std::expected<DocumentNode, DocumentError> parse_yaml(std::string_view text);

// Ends the parsing inside a parser's callbacks; never leaves the two functions above.
class DocumentRefused : public std::exception {
 public:
  explicit DocumentRefused(DocumentError error) : error_(std::move(error)) {}
  [[nodiscard]] const DocumentError& error() const { return error_; }

 private:
  DocumentError error_;
};

// Puts a tree together from a parser's events. Throws DocumentRefused at a limit.
class DocumentBuilder {
 public:
  void add(DocumentNode node);  // a scalar
  void begin(DocumentNode::Kind kind, Location location);
  void end();
  void key(std::string text, Location location);
  // Whether the mapping that is open waits for a key.
  [[nodiscard]] bool wants_key() const;
  [[nodiscard]] DocumentNode finish() && { return std::move(root_); }

 private:
  DocumentNode root_;
  std::vector<DocumentNode> open_;  // lists and mappings that have begun, outermost first
  std::size_t count_ = 0;
};

}  // namespace mapgate::policy
