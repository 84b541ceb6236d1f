// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/lpm_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

namespace mapgate::policy {
namespace {

BitPrefix bits(std::uint8_t first, std::uint8_t second, std::uint8_t length) {
  return {.bits = {first, second}, .length = length};
}

TEST(BitPrefix, ContainsWhatSharesItsBits) {
  EXPECT_TRUE(bits(0x80, 0, 1).contains(bits(0xc0, 0, 2)));
  EXPECT_FALSE(bits(0x80, 0, 1).contains(bits(0x40, 0, 2)));
  EXPECT_FALSE(bits(0xc0, 0, 2).contains(bits(0x80, 0, 1)));
  EXPECT_TRUE(bits(0, 0, 0).contains(bits(0xff, 0xff, 16)));
  EXPECT_TRUE(bits(0xab, 0x80, 9).contains(bits(0xab, 0x80, 9)));
  EXPECT_FALSE(bits(0xab, 0x80, 9).contains(bits(0xab, 0x00, 9)));
}

BitPrefix random_prefix(std::mt19937& random) {
  const auto length = static_cast<std::uint8_t>(random() % 17);
  const auto value =
      static_cast<std::uint16_t>(length == 0 ? 0 : random() & (0xffffU << (16 - length)));
  return bits(static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value & 0xff),
              length);
}

TEST(Lookup, FindsTheLongestNodeThatContains) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    LpmTable table;
    for (std::size_t i = random() % 40; i > 0; --i)
      table.push_back({random_prefix(random), random()});
    std::ranges::sort(table, {}, &LpmNode::prefix);
    const auto rest = std::ranges::unique(table, {}, &LpmNode::prefix);
    table.erase(rest.begin(), rest.end());

    const BitPrefix wanted = random_prefix(random);
    const LpmNode* best = nullptr;
    for (const LpmNode& node : table) {
      if (node.prefix.contains(wanted) &&
          (best == nullptr || node.prefix.length > best->prefix.length))
        best = &node;
    }
    ASSERT_EQ(lookup(table, wanted), best == nullptr ? 0 : best->port_sets) << "seed " << seed;
  }
}

TEST(PlanTransition, NothingToDoForEqualTables) {
  const LpmTable table = {{bits(0, 0, 0), 1}, {bits(0x80, 0, 1), 0}};
  const LpmTransition plan = plan_transition(table, table);
  EXPECT_TRUE(plan.split.empty() && plan.widen.empty() && plan.narrow.empty());
  EXPECT_TRUE(plan.narrow_erase.empty() && plan.merge.empty());
  EXPECT_EQ(plan.peak, 2U);
}

TEST(PlanTransition, AnExceptionStandsBeforeItsPrefixOpensAndFallsAfterItClosed) {
  const LpmTable none;
  const LpmTable table = {{bits(0, 0, 0), 1}, {bits(0x80, 0, 1), 0}};
  const LpmTransition open = plan_transition(none, table);
  EXPECT_EQ(open.split, (LpmTable{{bits(0x80, 0, 1), 0}}));
  EXPECT_EQ(open.widen, (LpmTable{{bits(0, 0, 0), 1}}));
  EXPECT_TRUE(open.narrow.empty() && open.narrow_erase.empty() && open.merge.empty());

  const LpmTransition close = plan_transition(table, none);
  EXPECT_TRUE(close.split.empty() && close.widen.empty() && close.narrow.empty());
  EXPECT_EQ(close.narrow_erase, (std::vector{bits(0, 0, 0)}));
  EXPECT_EQ(close.merge, (std::vector{bits(0x80, 0, 1)}));
}

TEST(PlanTransition, OneChangedNodeIsOneWrite) {
  const LpmTable from = {{bits(0x10, 0, 8), 1}, {bits(0x20, 0, 8), 1}};
  const LpmTable more = {{bits(0x10, 0, 8), 3}, {bits(0x20, 0, 8), 1}};
  const LpmTransition widen = plan_transition(from, more);
  EXPECT_EQ(widen.widen, (LpmTable{{bits(0x10, 0, 8), 3}}));
  EXPECT_TRUE(widen.split.empty() && widen.narrow.empty() && widen.narrow_erase.empty() &&
              widen.merge.empty());
  const LpmTransition narrow = plan_transition(more, from);
  EXPECT_EQ(narrow.narrow, (LpmTable{{bits(0x10, 0, 8), 1}}));
  EXPECT_TRUE(narrow.split.empty() && narrow.widen.empty() && narrow.narrow_erase.empty() &&
              narrow.merge.empty());
}

}  // namespace
}  // namespace mapgate::policy
