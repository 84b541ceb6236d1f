// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "agent/policy/document.h"

namespace mapgate::policy {
namespace {

Location to_location(const YAML::Mark& mark) {
  return {.line = static_cast<unsigned>(std::max(mark.line, 0)) + 1,
          .column = static_cast<unsigned>(std::max(mark.column, 0)) + 1};
}

// Decimal, without leading zeros: those are octal to some readers.
bool parse_integer(std::string_view text, std::int64_t& value) {
  std::string_view digits = text;
  if (digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.size() > 1 && digits.front() == '0') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::invalid_argument && end == text.data() + text.size();
}

DocumentNode plain_scalar(const std::string& text, Location location) {
  DocumentNode node;
  node.location = location;
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")
    return node;
  if (text == "true" || text == "True" || text == "TRUE" || text == "false" || text == "False" ||
      text == "FALSE") {
    node.kind = DocumentNode::Kind::kBoolean;
    node.boolean = text.size() == 4;
  } else if (parse_integer(text, node.integer)) {
    node.kind = DocumentNode::Kind::kInteger;
  } else if (is_number(text)) {
    node.kind = DocumentNode::Kind::kOtherNumber;
    node.text = text;
  } else {
    node.kind = DocumentNode::Kind::kString;
    node.text = text;
  }
  return node;
}

class YamlHandler : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) refuse(mark, "a second document; a spec is one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    OnScalar(mark, "?", anchor, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases are not supported");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!";
    check(mark, quoted ? "" : tag, anchor);
    const Location location = to_location(mark);
    DocumentNode node;
    if (quoted) {
      node.kind = DocumentNode::Kind::kString;
      node.location = location;
      node.text = value;
    } else {
      node = plain_scalar(value, location);
    }
    if (builder_.wants_key()) {
      if (node.kind == DocumentNode::Kind::kNull) refuse(mark, "a key is missing");
      builder_.key(value, location);
    } else {
      builder_.add(std::move(node));
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark, tag, anchor, DocumentNode::Kind::kList);
  }
  void OnSequenceEnd() override { builder_.end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark, tag, anchor, DocumentNode::Kind::kMapping);
  }
  void OnMapEnd() override { builder_.end(); }

  [[nodiscard]] DocumentNode finish() && { return std::move(builder_).finish(); }

 private:
  [[noreturn]] static void refuse(const YAML::Mark& mark, std::string reason) {
    throw DocumentRefused({to_location(mark), std::move(reason)});
  }
  static void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(mark, "anchors are not supported");
    if (!tag.empty() && tag != "?") refuse(mark, "tags are not supported");
  }
  void begin(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
             DocumentNode::Kind kind) {
    check(mark, tag, anchor);
    if (builder_.wants_key()) refuse(mark, "a key must be a scalar");
    builder_.begin(kind, to_location(mark));
  }

  DocumentBuilder builder_;
  int documents_ = 0;
};

}  // namespace

std::expected<DocumentNode, DocumentError> parse_yaml(std::string_view text) {
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    YamlHandler handler;
    if (!parser.HandleNextDocument(handler)) {
      return std::unexpected(DocumentError{{1, 1}, "the document is empty"});
    }
    while (parser.HandleNextDocument(handler)) {
    }
    return std::move(handler).finish();
  } catch (const DocumentRefused& refused) {
    return std::unexpected(refused.error());
  } catch (const YAML::Exception& exception) {
    return std::unexpected(
        DocumentError{to_location(exception.mark), "not YAML: " + exception.msg});
  }
}

}  // namespace mapgate::policy
