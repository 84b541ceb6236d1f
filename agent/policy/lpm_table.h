// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mapgate::policy {

// The first `length` bits of a key of at most 128 bits; the rest are zero. Sorting puts a prefix
// before everything inside it, and what is inside it right behind it.
struct BitPrefix {
  std::array<std::uint8_t, 16> bits{};
  std::uint8_t length = 0;

  [[nodiscard]] bool contains(const BitPrefix& other) const;

  friend auto operator<=>(const BitPrefix&, const BitPrefix&) = default;
};

// One workload's nodes of an LPM trie, sorted. The value of a node is that of everything in it
// which has no longer node: the longest match alone is right.
struct LpmNode {
  BitPrefix prefix;
  std::uint64_t port_sets = 0;

  friend bool operator==(const LpmNode&, const LpmNode&) = default;
};
using LpmTable = std::vector<LpmNode>;

// `port_sets` of the longest node that contains `prefix`; 0 if there is none.
[[nodiscard]] std::uint64_t lookup(const LpmTable& table, const BitPrefix& prefix);

// The changes that turn one table into another with nothing denied on the way that both allow, and
// nothing allowed that neither allows. Four phases: one may begin only when the kernel holds all of
// the phase before it, but inside a phase the changes may arrive in any order. Only real changes
// are listed.
struct LpmTransition {
  LpmTable split;                       // new nodes with the old value: no verdict changes
  LpmTable widen;                       // what the old or the new table allows
  LpmTable narrow;                      // what the new table allows ...
  std::vector<BitPrefix> narrow_erase;  // ... and old nodes that may go at the same time
  std::vector<BitPrefix> merge;         // the other old nodes: no verdict changes
  std::size_t peak = 0;                 // nodes held at most
};
[[nodiscard]] LpmTransition plan_transition(const LpmTable& from, const LpmTable& to);

}  // namespace mapgate::policy
