// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/btf_layout.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "tests/schema/fixture.h"
#include "tests/schema/types.h"

namespace mapgate::schema {
namespace {

using test::encode_as;
using test::layout_of;
using Kind = policy::Layout::Kind;

TEST(BtfLayout, IntegersOfEverySizeLandInTheirFields) {
  const auto value = encode_as<integers>(
      "integers",
      R"({"u8": 255, "s8": -128, "u16": 65535, "s16": -32768, "u32": 4294967295, "s32": -2147483648,
          "u64": 18446744073709551615, "s64": -9223372036854775808,
          "u128": "0x0102030405060708090a0b0c0d0e0f10", "s128": -1, "flag": true})");
  EXPECT_EQ(value.u8, UINT8_MAX);
  EXPECT_EQ(value.s8, INT8_MIN);
  EXPECT_EQ(value.u16, UINT16_MAX);
  EXPECT_EQ(value.s16, INT16_MIN);
  EXPECT_EQ(value.u32, UINT32_MAX);
  EXPECT_EQ(value.s32, INT32_MIN);
  EXPECT_EQ(value.u64, UINT64_MAX);
  EXPECT_EQ(value.s64, INT64_MIN);
  EXPECT_EQ(static_cast<std::uint64_t>(value.u128 >> 64), 0x0102030405060708U);
  EXPECT_EQ(static_cast<std::uint64_t>(value.u128), 0x090a0b0c0d0e0f10U);
  EXPECT_TRUE(value.s128 == -1);
  EXPECT_TRUE(value.flag);
}

TEST(BtfLayout, KernelTypesOfNetworkOrderAreBigEndianAndAddressesAreText) {
  const auto value = encode_as<network>(
      "network", R"({"port": 443, "word": 1, "cookie": 2, "addr": "192.0.2.1", "v4": "192.0.2.2",
                     "v6": "2001:db8::1", "peer_addr": "192.0.2.3", "mac": [1, 2, 3, 4, 5, 6]})");
  EXPECT_EQ(value.port, htons(443));
  EXPECT_EQ(value.word, htonl(1));
  EXPECT_EQ(value.cookie, static_cast<__be64>(htonl(2)) << 32);
  EXPECT_EQ(value.addr, htonl(0xc0000201));
  EXPECT_EQ(value.v4.s_addr, htonl(0xc0000202));
  EXPECT_EQ(value.v6.s6_addr[0], 0x20);
  EXPECT_EQ(value.v6.s6_addr[15], 1);
  // An IPv4 address in 16 bytes is IPv4-mapped.
  EXPECT_EQ(value.peer_addr[9], 0);
  EXPECT_EQ(value.peer_addr[10], 0xff);
  EXPECT_EQ(value.peer_addr[15], 3);
  EXPECT_EQ(value.mac[5], 6);
}

TEST(BtfLayout, StructsArraysAndEnumsNest) {
  const auto value = encode_as<nested>(
      "nested",
      R"({"one": {"first": 1, "second": 2}, "many": [{"first": 3, "second": 4}, {"first": 5, "second": 6}],
          "grid": [[1, 2, 3], [4, 5, 6]], "comm": "nginx", "verdict": "VERDICT_REJECT", "level": "LEVEL_LOW"})");
  EXPECT_EQ(value.one.second, 2U);
  EXPECT_EQ(value.many[1].first, 5);
  EXPECT_EQ(value.grid[1][0], 4);
  EXPECT_STREQ(value.comm, "nginx");
  EXPECT_EQ(value.verdict, VERDICT_REJECT);
  EXPECT_EQ(value.level, LEVEL_LOW);
}

TEST(BtfLayout, PaddingIsZero) {
  policy::Layout layout = layout_of("inner");
  const auto encoded = test::encode_json(layout, R"({"first": 255, "second": 4294967295})");
  ASSERT_EQ(encoded.bytes.size(), sizeof(inner));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(encoded.bytes[i], std::byte{0}) << i;
}

TEST(BtfLayout, BitfieldsLieWhereTheCompilerPutsThem) {
  const auto value = encode_as<bits>(
      "bits", R"({"low": 5, "middle": 65537, "last": -16, "whole": 9, "wide": 1099511627775})");
  EXPECT_EQ(value.low, 5U);
  EXPECT_EQ(value.middle, 65537U);
  EXPECT_EQ(value.last, -16);
  EXPECT_EQ(value.whole, 9);
  EXPECT_EQ(value.wide, 0xffffffffffU);
}

TEST(BtfLayout, AUnionIsWrittenByOneMember) {
  auto value = encode_as<either>("either", R"({"family": 2, "v4": 1, "named": {"large": 7}})");
  EXPECT_EQ(value.v4, htonl(1));
  EXPECT_EQ(value.named.large, 7U);
  value =
      encode_as<either>("either", R"({"family": 1, "left": 3, "right": 4, "named": {"small": 8}})");
  EXPECT_EQ(value.left, 3);
  EXPECT_EQ(value.right, 4);
  EXPECT_EQ(value.named.small, 8);
}

TEST(BtfLayout, WhatNoDocumentCanHoldIsHex) {
  const policy::Layout layout = layout_of("unwritable");
  ASSERT_EQ(layout.parts.size(), 1U);
  EXPECT_EQ(layout.parts.front().kind, Kind::kBytes);
  EXPECT_EQ(layout.parts.front().size, sizeof(void*));
}

TEST(BtfLayout, ATypeThatDoesNotExistIsRefused) {
  struct Free {
    void operator()(btf* types) const { btf__free(types); }
  };
  const std::unique_ptr<btf, Free> types(btf__new_empty());
  EXPECT_FALSE(layout_of_type(*types, 17));
}

// Anybody may load BTF that the compiler would not write.
TEST(BtfLayout, ATypeWithoutEndIsRefused) {
  struct Free {
    void operator()(btf* types) const { btf__free(types); }
  };
  const std::unique_ptr<btf, Free> types(btf__new_empty());
  const int integer = btf__add_int(types.get(), "int", 4, BTF_INT_SIGNED);
  int last = integer;
  for (int i = 0; i < 40; ++i) {
    last = btf__add_struct(types.get(), ("s" + std::to_string(i)).c_str(), 4);
    btf__add_field(types.get(), "inside", last - 1, 0, 0);
  }
  EXPECT_FALSE(layout_of_type(*types, static_cast<std::uint32_t>(last)));
  EXPECT_TRUE(layout_of_type(*types, static_cast<std::uint32_t>(integer + 3)));
}

}  // namespace
}  // namespace mapgate::schema
