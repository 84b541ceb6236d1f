// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/pattern.h"

#include <algorithm>
#include <cstddef>

#include "agent/policy/name.h"

namespace mapgate::policy {
namespace {

bool is_allowed(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == '*';
}

// A glob in which '*' does not match '.'. Linear in practice: it goes back to the latest '*' only.
bool matches_labels(std::string_view pattern, std::string_view name) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = kNone;  // where to go on in the pattern after the latest '*' of this label ...
  std::size_t star_name = 0;  // ... and in the name
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      if (name[n] == '.') star = kNone;  // the label is matched for good
      ++p;
      ++n;
    } else if (star != kNone && name[star_name] != '.') {
      p = star;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::size_t count_labels(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::count(name, '.')) + 1;
}

// The last `count` labels of a name that has more.
std::string_view last_labels(std::string_view name, std::size_t count) {
  std::size_t dot = name.size();
  for (; count > 0; --count) dot = name.rfind('.', dot - 1);
  return name.substr(dot + 1);
}

constexpr std::string_view kAnyLabels = "**.";

}  // namespace

std::expected<NamePattern, std::string> NamePattern::parse(std::string_view text) {
  NamePattern result;
  if (text == "*") {
    result.text_ = text;
    result.kind_ = Kind::kEveryName;
    return result;
  }
  if (!std::ranges::all_of(text, is_allowed)) {
    return std::unexpected("has a character that is not a letter, digit, '.', '-', '_' or '*'");
  }
  std::string_view labels = text;
  if (labels.starts_with(kAnyLabels)) {
    result.kind_ = Kind::kLabelsBelow;
    labels.remove_prefix(kAnyLabels.size());
  }
  if (labels.find("**") != std::string_view::npos)
    return std::unexpected("has a \"**\" that is not a leading \"**.\"");
  const auto normalized = normalize_name(labels);
  if (!normalized || normalized->empty()) {
    return std::unexpected(
        "is not a DNS name: it has an empty label, one of more than 63 characters, or more than "
        "253 "
        "characters");
  }
  result.text_ =
      (result.kind_ == Kind::kLabelsBelow ? std::string(kAnyLabels) : std::string()) + *normalized;
  return result;
}

bool NamePattern::matches(std::string_view name) const {
  if (kind_ == Kind::kEveryName) return true;
  if (name.empty()) return false;
  std::string_view labels = text_;
  if (kind_ == Kind::kLabelsBelow) {
    labels.remove_prefix(kAnyLabels.size());
    const std::size_t count = count_labels(labels);
    if (count_labels(name) <= count) return false;
    name = last_labels(name, count);
  }
  return matches_labels(labels, name);
}

std::string_view NamePattern::literal_suffix() const {
  const std::string_view text = text_;
  const std::size_t star = text.rfind('*');
  if (star == std::string_view::npos) return text;
  const std::size_t dot = text.find('.', star);
  return dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
}

}  // namespace mapgate::policy
