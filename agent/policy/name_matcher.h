// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/policy/pattern.h"
#include "agent/policy/spec.h"

namespace mapgate::policy {

// Finds all selectors of a workload that match a name, fast also when there are many: exact names
// by one look-up, patterns by one for each of the name's suffixes. Immutable once built; match()
// does not allocate.
class NameMatcher {
 public:
  struct Match {
    static constexpr std::uint32_t kNone = UINT32_MAX;
    std::uint32_t rank = kNone;  // the lowest of the selectors that match
    std::uint64_t port_sets = 0;
  };

  // `rank` tells selectors apart: the position of their rule in the workload.
  void add(const NameSelector& selector, std::uint32_t rank, std::uint64_t port_sets);
  [[nodiscard]] Match match(std::string_view name) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  template <typename Value>
  using ByText = boost::unordered_flat_map<std::string, Value, Hash, std::equal_to<>>;
  struct PatternEntry {
    NamePattern pattern;
    Match match;
  };

  ByText<Match> names_;
  ByText<std::vector<PatternEntry>> patterns_;  // by NamePattern::literal_suffix()
};

}  // namespace mapgate::policy
