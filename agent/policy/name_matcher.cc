// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/name_matcher.h"

#include <algorithm>

namespace mapgate::policy {
namespace {

void merge(NameMatcher::Match& into, const NameMatcher::Match& other) {
  into.rank = std::min(into.rank, other.rank);
  into.port_sets |= other.port_sets;
}

}  // namespace

void NameMatcher::add(const NameSelector& selector, std::uint32_t rank, std::uint64_t port_sets) {
  const Match match{.rank = rank, .port_sets = port_sets};
  if (const auto* pattern = std::get_if<NamePattern>(&selector)) {
    patterns_[std::string(pattern->literal_suffix())].push_back({*pattern, match});
  } else {
    merge(names_[std::get<std::string>(selector)], match);
  }
}

NameMatcher::Match NameMatcher::match(std::string_view name) const {
  Match result;
  if (const auto found = names_.find(name); found != names_.end()) result = found->second;
  if (patterns_.empty()) return result;

  std::string_view suffix = name;
  for (;;) {
    if (const auto found = patterns_.find(suffix); found != patterns_.end()) {
      for (const auto& [pattern, match] : found->second) {
        if (pattern.matches(name)) merge(result, match);
      }
    }
    if (suffix.empty()) return result;
    const std::size_t dot = suffix.find('.');
    suffix = dot == std::string_view::npos ? std::string_view() : suffix.substr(dot + 1);
  }
}

}  // namespace mapgate::policy
