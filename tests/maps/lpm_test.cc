// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/lpm.h>

#include <array>
#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

namespace mapgate::maps {
namespace {

struct Key {
  std::uint32_t prefix_length;
  std::array<std::uint8_t, 4> data;

  friend bool operator==(const Key&, const Key&) = default;
};

std::span<std::byte> bytes(Key& key) {
  return std::as_writable_bytes(std::span(&key, 1));
}

struct Case {
  Key from;
  Key to;
};

class CanonicalLpmKey : public testing::TestWithParam<Case> {};

TEST_P(CanonicalLpmKey, HasNoBitsPastItsPrefix) {
  Key key = GetParam().from;
  EXPECT_EQ(is_canonical_lpm_key(bytes(key)), GetParam().from == GetParam().to);
  EXPECT_TRUE(canonicalize_lpm_key(bytes(key)));
  EXPECT_EQ(key, GetParam().to);
  EXPECT_TRUE(is_canonical_lpm_key(bytes(key)));
}

INSTANTIATE_TEST_SUITE_P(, CanonicalLpmKey,
                         testing::Values(Case{{24, {10, 0, 0, 9}}, {24, {10, 0, 0, 0}}},
                                         Case{{24, {10, 0, 0, 0}}, {24, {10, 0, 0, 0}}},
                                         Case{{25, {10, 0, 0, 255}}, {25, {10, 0, 0, 128}}},
                                         Case{{31, {1, 2, 3, 255}}, {31, {1, 2, 3, 254}}},
                                         Case{{32, {1, 2, 3, 255}}, {32, {1, 2, 3, 255}}},
                                         Case{{1, {255, 255, 255, 255}}, {1, {128, 0, 0, 0}}},
                                         Case{{0, {1, 2, 3, 4}}, {0, {0, 0, 0, 0}}}));

TEST(CanonicalizeLpmKey, RefusesAPrefixLongerThanTheDataAndAKeyTooShort) {
  Key key{33, {1, 2, 3, 4}};
  EXPECT_FALSE(canonicalize_lpm_key(bytes(key)));
  EXPECT_FALSE(is_canonical_lpm_key(bytes(key)));
  EXPECT_EQ(key, (Key{33, {1, 2, 3, 4}}));
  EXPECT_FALSE(canonicalize_lpm_key(bytes(key).first(3)));
}

}  // namespace
}  // namespace mapgate::maps
