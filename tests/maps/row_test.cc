// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/row.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace mapgate::maps {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

class ShortBytesOfSize : public testing::TestWithParam<std::size_t> {};

TEST_P(ShortBytesOfSize, KeepsItsBytesWhenCopiedMovedAndAssigned) {
  const auto bytes = pattern(GetParam());
  RowValue original(bytes);
  RowValue copy(original);
  EXPECT_EQ(copy, original);
  RowValue moved(std::move(copy));
  EXPECT_EQ(moved, original);
  RowValue assigned(pattern(40));
  assigned = original;
  EXPECT_EQ(assigned, original);
  assigned = RowValue(pattern(3));
  assigned = std::move(moved);
  EXPECT_TRUE(std::ranges::equal(assigned.bytes(), bytes));
}

INSTANTIATE_TEST_SUITE_P(InlineAndHeap, ShortBytesOfSize,
                         testing::Values(0, 1, 14, 15, 16, 300, 65535));

TEST(ShortBytes, RefusesMoreThanItCanHold) {
  EXPECT_THROW(RowValue(pattern(65536)), std::length_error);
}

TEST(RowKey, DiffersByMapByBytesAndByLength) {
  const auto bytes = pattern(8);
  const RowKey key(1, bytes);
  EXPECT_EQ(key, RowKey(1, bytes));
  EXPECT_NE(key, RowKey(2, bytes));
  EXPECT_NE(key, RowKey(1, pattern(7)));
  EXPECT_EQ(key.as<std::uint64_t>(), RowKey::of(1, key.as<std::uint64_t>()).as<std::uint64_t>());
}

TEST(RowKeyHash, SpreadsKeysThatDifferInFewBitsOverAllOfItsBits) {
  constexpr std::size_t kKeys = 1 << 16;
  // An unlucky bucket of 2^16 balls in 2^8 buckets (256 on average, deviation 16) stays well below
  // 384.
  for (const int shift : {0, 28, 56}) {
    std::vector<int> buckets(256);
    for (std::uint32_t i = 0; i < kKeys; ++i) {
      std::array<std::uint32_t, 5> key{7, 0, 0, 0xffff0000, i << 8};
      ++buckets[(RowKeyHash{}(RowKey::of(0, key)) >> shift) & 0xff];
    }
    EXPECT_LT(*std::ranges::max_element(buckets), 384) << "shift " << shift;
  }
}

TEST(RowKeyHash, SeesTheMapTheLengthAndEveryByte) {
  std::set<std::size_t> hashes;
  std::size_t inserted = 0;
  const auto add = [&](const RowKey& key) {
    hashes.insert(RowKeyHash{}(key));
    ++inserted;
  };
  for (std::size_t size = 0; size < 40; ++size) {
    const std::vector<std::byte> zeros(size);
    for (MapIndex map = 0; map < 3; ++map) add(RowKey(map, zeros));
    for (std::size_t i = 0; i < size; ++i) {
      auto changed = zeros;
      changed[i] = std::byte{0x80};
      add(RowKey(0, changed));
    }
  }
  EXPECT_EQ(hashes.size(), inserted);
}

}  // namespace
}  // namespace mapgate::maps
