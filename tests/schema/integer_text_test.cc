// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/integer_text.h"

#include <gtest/gtest.h>

#include <array>

namespace mapgate::schema {
namespace {

TEST(IntegerText, TakesDecimalAndHexadecimalOfUpTo128Bits) {
  EXPECT_EQ(to_text(*parse_integer("340282366920938463463374607431768211455")),
            "340282366920938463463374607431768211455");
  EXPECT_EQ(to_text(*parse_integer("0xFf")), "255");
  EXPECT_EQ(to_text(*parse_integer("-170141183460469231731687303715884105728")),
            "-170141183460469231731687303715884105728");
  EXPECT_EQ(to_text(*parse_integer("-0")), "0");
  for (const char* text : {"", "-", "0x", "1 ", " 1", "+1", "1.0", "0xg", "--1",
                           "340282366920938463463374607431768211456"})
    EXPECT_FALSE(parse_integer(text)) << text;
}

TEST(IntegerText, RangesAreThoseOfTwosComplement) {
  EXPECT_TRUE(fits({true, 128}, 8, true));
  EXPECT_FALSE(fits({true, 129}, 8, true));
  EXPECT_FALSE(fits({false, 128}, 8, true));
  EXPECT_TRUE(fits({false, 255}, 8, false));
  EXPECT_FALSE(fits({true, 1}, 8, false));
  EXPECT_EQ(range_text(1, true), "-1..0");
  EXPECT_EQ(range_text(128, false), "0..340282366920938463463374607431768211455");
}

TEST(IntegerText, StoresInEitherByteOrder) {
  std::array<std::byte, 3> bytes{};
  store(0x010203, true, bytes);
  EXPECT_EQ(bytes, (std::array{std::byte{1}, std::byte{2}, std::byte{3}}));
  EXPECT_TRUE(load(bytes, true) == 0x010203);
}

TEST(IntegerText, ValuesSurviveTheirBits) {
  for (const unsigned bits : {3U, 8U, 17U, 64U, 128U}) {
    const Integer least{true, Uint128{1} << (bits - 1)};
    const Integer back = from_bits(to_bits(least, bits), bits, true);
    EXPECT_TRUE(back.negative && back.magnitude == least.magnitude) << bits;
  }
}

}  // namespace
}  // namespace mapgate::schema
