// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/lpm_table.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace mapgate::policy {
namespace {

// How many leading bits two prefixes share.
std::uint8_t common_length(const BitPrefix& a, const BitPrefix& b) {
  const unsigned shorter = std::min(a.length, b.length);
  unsigned length = 0;
  for (std::size_t i = 0; i < a.bits.size() && length < shorter; ++i) {
    const auto difference = static_cast<std::uint8_t>(a.bits[i] ^ b.bits[i]);
    length += static_cast<unsigned>(std::countl_zero(difference));
    if (difference != 0) break;
  }
  return static_cast<std::uint8_t>(std::min(length, shorter));
}

BitPrefix truncate(BitPrefix prefix, std::uint8_t length) {
  prefix.length = length;
  for (std::size_t i = 0; i < prefix.bits.size(); ++i) {
    const std::size_t kept = length > i * 8 ? std::min<std::size_t>(length - i * 8, 8) : 0;
    prefix.bits[i] &= static_cast<std::uint8_t>(0xff00U >> kept);
  }
  return prefix;
}

struct UnionNode {
  BitPrefix prefix;
  bool in_from = false;
  bool in_to = false;
};

std::vector<UnionNode> unite(const LpmTable& from, const LpmTable& to) {
  std::vector<UnionNode> nodes;
  nodes.reserve(from.size() + to.size());
  auto a = from.begin();
  auto b = to.begin();
  while (a != from.end() || b != to.end()) {
    const bool in_from = a != from.end() && (b == to.end() || a->prefix <= b->prefix);
    const bool in_to = b != to.end() && (a == from.end() || b->prefix <= a->prefix);
    nodes.push_back({in_from ? a->prefix : b->prefix, in_from, in_to});
    if (in_from) ++a;
    if (in_to) ++b;
  }
  return nodes;
}

// Goes over the nodes in order and knows what the nodes around the current one hold in the `widen`
// phase at most.
class Surroundings {
 public:
  // The OR of the values around `prefix`; then `prefix` with `value` counts as around what lies in
  // it.
  std::uint64_t enter(const BitPrefix& prefix, std::uint64_t value) {
    while (!path_.empty() && !path_.back().prefix.contains(prefix)) path_.pop_back();
    const std::uint64_t around = path_.empty() ? 0 : path_.back().port_sets;
    path_.push_back({prefix, around | value});
    return around;
  }

 private:
  LpmTable path_;
};

}  // namespace

bool BitPrefix::contains(const BitPrefix& other) const {
  return length <= other.length && common_length(*this, other) == length;
}

std::uint64_t lookup(const LpmTable& table, const BitPrefix& prefix) {
  BitPrefix wanted = prefix;
  for (;;) {
    auto next = std::ranges::upper_bound(table, wanted, {}, &LpmNode::prefix);
    if (next == table.begin()) return 0;
    const LpmNode& before = *std::prev(next);
    if (before.prefix.contains(wanted)) return before.port_sets;
    // Whatever contains `wanted` comes before this node, so it contains this node too: it is no
    // longer than what they share.
    wanted = truncate(wanted, common_length(before.prefix, wanted));
  }
}

LpmTransition plan_transition(const LpmTable& from, const LpmTable& to) {
  LpmTransition plan;
  const std::vector<UnionNode> nodes = unite(from, to);
  plan.peak = nodes.size();
  Surroundings surroundings;
  for (const auto& [prefix, in_from, in_to] : nodes) {
    const std::uint64_t before = lookup(from, prefix);
    const std::uint64_t after = lookup(to, prefix);
    const std::uint64_t both = before | after;
    // While the node is missing, what is around it judges: that must not be allowed more than the
    // node.
    const bool shields = (surroundings.enter(prefix, both) & ~both) != 0;

    if (!in_from && shields) plan.split.push_back({prefix, before});
    const bool held = in_from || shields;
    if (!held || both != before) plan.widen.push_back({prefix, both});
    if (!in_to && !shields) {
      plan.narrow_erase.push_back(prefix);
      continue;
    }
    if (after != both) plan.narrow.push_back({prefix, after});
    if (!in_to) plan.merge.push_back(prefix);
  }
  return plan;
}

}  // namespace mapgate::policy
