// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>
#include <string_view>

namespace mapgate::policy {

// A `matchPattern`, with the semantics of Cilium's:
//  - letters, digits, '.', '-', '_' and '*'; case does not matter, nor does a trailing dot;
//  - '*' stays inside one label and may match nothing of it: "*.example.com" matches
//  "a.example.com", but neither
//    "example.com" nor "a.b.example.com"; "part*ial.com" matches "partial.com";
//  - a leading "**." matches one or more whole labels; "**" elsewhere is refused;
//  - "*" alone matches every name.
class NamePattern {
 public:
  // The error is a reason for people.
  [[nodiscard]] static std::expected<NamePattern, std::string> parse(std::string_view text);

  // `name` as normalize_name() returns it.
  [[nodiscard]] bool matches(std::string_view name) const;

  // The normalised text.
  [[nodiscard]] const std::string& text() const { return text_; }
  // The whole labels at the end that hold no '*' ("example.com" of "a*.example.com"; "" of "*").
  // Every name that matches ends in these labels.
  [[nodiscard]] std::string_view literal_suffix() const;

  friend bool operator==(const NamePattern&, const NamePattern&) = default;

 private:
  enum class Kind { kEveryName, kLabels, kLabelsBelow };

  std::string text_;
  Kind kind_ = Kind::kLabels;
};

}  // namespace mapgate::policy
