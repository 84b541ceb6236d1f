// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/schema/fixture.h"

namespace mapgate::schema {
namespace {

using policy::Layout;
using policy::LayoutHint;
using test::layout_of;
using testing::HasSubstr;

TEST(Hint, MakesAnAddressOfAnInteger) {
  Layout layout = layout_of("inner");
  ASSERT_TRUE(apply_hint(layout, "second", LayoutHint::kAddress));
  const auto encoded = test::encode_json(layout, R"({"first": 1, "second": "192.0.2.1"})");
  ASSERT_EQ(encoded.bytes.size(), 8U);
  EXPECT_EQ(encoded.bytes[4], std::byte{192});
  EXPECT_EQ(encoded.bytes[7], std::byte{1});
}

TEST(Hint, ReachesIntoStructsAndTheElementsOfArrays) {
  Layout layout = layout_of("nested");
  ASSERT_TRUE(apply_hint(layout, "many.second", LayoutHint::kBigEndian));
  ASSERT_TRUE(apply_hint(layout, "grid", LayoutHint::kBigEndian));
  EXPECT_TRUE(layout.parts[1].parts.front().parts[1].big_endian);
  EXPECT_FALSE(layout.parts[0].parts[1].big_endian);
  EXPECT_TRUE(layout.parts[2].parts.front().parts.front().big_endian);
}

TEST(Hint, ReachesFieldsOfAnonymousMembers) {
  Layout layout = layout_of("either");
  ASSERT_TRUE(apply_hint(layout, "v4", LayoutHint::kAddress));
  EXPECT_TRUE(
      test::encode_json(layout, R"({"family": 2, "v4": "192.0.2.1", "named": {"small": 1}})")
          .faults.empty());
}

TEST(Hint, MakesHexOfAnything) {
  Layout layout = layout_of("network");
  ASSERT_TRUE(apply_hint(layout, "mac", LayoutHint::kHex));
  ASSERT_TRUE(apply_hint(layout, "", LayoutHint::kHex));
  EXPECT_EQ(layout.kind, Layout::Kind::kBytes);
}

TEST(Hint, ThatDoesNotFitIsRefused) {
  Layout layout = layout_of("nested");
  const auto reason = [&](std::string_view path, LayoutHint hint) {
    const auto applied = apply_hint(layout, path, hint);
    return applied ? std::string() : applied.error();
  };
  EXPECT_THAT(reason("nobody", LayoutHint::kHex), HasSubstr("there is no field \"nobody\""));
  EXPECT_THAT(reason("one.nobody", LayoutHint::kHex), HasSubstr("there is no field \"nobody\""));
  EXPECT_THAT(reason("one", LayoutHint::kBigEndian), HasSubstr("for integers"));
  EXPECT_THAT(reason("one.first", LayoutHint::kAddress), HasSubstr("4 or 16 bytes, not 1"));
  EXPECT_THAT(reason("verdict", LayoutHint::kText), HasSubstr("arrays of bytes"));
}

}  // namespace
}  // namespace mapgate::schema
