// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "agent/policy/layout_text.h"
#include "tests/schema/fixture.h"

namespace mapgate::schema {
namespace {

using nlohmann::ordered_json;
using policy::Layout;
using test::encode_json;
using test::layout_of;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// A layout as a spec describes it.
Layout described(std::string_view json) {
  const auto document = policy::parse_json(json);
  policy::SpecErrors errors("layout.json");
  const auto layout = policy::read_layout(errors, policy::Place(*document));
  for (const auto& error : std::move(errors).finish()) ADD_FAILURE() << error.to_string();
  return layout.value_or(Layout{});
}

struct RoundTrip {
  std::string_view type;  // of types.bpf.c, or a layout in JSON
  std::string_view json;

  friend std::ostream& operator<<(std::ostream& out, const RoundTrip& r) { return out << r.json; }
};

class CodecRoundTrip : public testing::TestWithParam<RoundTrip> {};

TEST_P(CodecRoundTrip, ReadsBackAsItWasWritten) {
  const auto& [type, json] = GetParam();
  Layout layout = type.find_first_of("\"{") == type.npos ? layout_of(std::string(type).c_str())
                                                         : described(type);
  const auto encoded = encode_json(layout, json);
  EXPECT_THAT(encoded.faults, testing::IsEmpty());
  ASSERT_EQ(encoded.bytes.size(), layout.size);
  EXPECT_EQ(decode(layout, encoded.bytes), ordered_json::parse(json));
}

INSTANTIATE_TEST_SUITE_P(
    All, CodecRoundTrip,
    testing::Values(
        RoundTrip{"integers",
                  R"({"u8": 255, "s8": -128, "u16": 1, "s16": -2, "u32": 3, "s32": -4,
                      "u64": 18446744073709551615, "s64": -9223372036854775808,
                      "u128": "340282366920938463463374607431768211455", "s128": -1,
                      "flag": true})"},
        RoundTrip{"network",
                  R"({"port": 443, "word": 1, "cookie": 2, "addr": "192.0.2.1", "v4": "192.0.2.2",
                      "v6": "2001:db8::1", "peer_addr": "192.0.2.3", "mac": [1, 2, 3, 4, 5, 6]})"},
        RoundTrip{"nested",
                  R"({"one": {"first": 1, "second": 2},
                      "many": [{"first": 3, "second": 4}, {"first": 5, "second": 6}],
                      "grid": [[1, 2, 3], [4, 5, 6]], "comm": "nginx",
                      "verdict": "VERDICT_DROP", "level": "LEVEL_LOW"})"},
        RoundTrip{"nested",
                  R"({"one": {"first": 1, "second": 2},
                      "many": [{"first": 3, "second": 4}, {"first": 5, "second": 6}],
                      "grid": [[1, 2, 3], [4, 5, 6]], "comm": "exactly sixteen!",
                      "verdict": 99, "level": -3, "_pad": [0, 0, 0, 1]})"},
        RoundTrip{"bits", R"({"low": 7, "middle": 131071, "last": -1, "whole": 0, "wide": 5})"},
        RoundTrip{"either", R"({"family": 2, "v4": 1, "named": {"small": 8}})"},
        RoundTrip{"either", R"({"family": 10, "v6": "2001:db8::1", "named": {"large": 8}})"},
        RoundTrip{"either", R"({"family": 1, "left": 3, "right": 4, "named": {"large": 256}})"},
        RoundTrip{"lpm_key", R"({"prefixlen": 24, "addr": "192.0.2.0"})"},
        RoundTrip{"unwritable", R"({"pointer": "0x0102030405060708"})"}, RoundTrip{R"("u32")", "7"},
        RoundTrip{R"("be64")", "7"}, RoundTrip{R"("i128")", "-7"},
        RoundTrip{R"("char[4]")", R"("é")"}, RoundTrip{R"("u16[3]")", "[1, 2, 3]"},
        RoundTrip{R"("hex[3]")", R"("0x0a0b0c")"},
        RoundTrip{R"({"a": "u8", "b": "u64", "c": {"d": "ipv6", "e": "bool"}})",
                  R"({"a": 1, "b": 2, "c": {"d": "::1", "e": false}})"}));

TEST(Codec, DescribedStructsAreAlignedAsInC) {
  Layout layout = described(R"({"a": "u8", "b": "u32", "c": "u16", "d": {"e": "u8", "f": "u64"}})");
  EXPECT_EQ(layout.parts[1].offset, 4U);
  EXPECT_EQ(layout.parts[2].offset, 8U);
  EXPECT_EQ(layout.parts[3].offset, 16U);
  EXPECT_EQ(layout.size, 32U);
}

TEST(Codec, ArraysOfBytesMayBeWrittenInHex) {
  Layout layout = described(R"("u8[3]")");
  EXPECT_EQ(encode_json(layout, R"("0x0a0b0c")").bytes, encode_json(layout, "[10, 11, 12]").bytes);
  layout = described(R"("hex[3]")");
  EXPECT_EQ(encode_json(layout, R"("0x0a0b0c")").bytes, encode_json(layout, "[10, 11, 12]").bytes);
}

TEST(Codec, TextThatIsNoUtf8ReadsBackAsBytes) {
  Layout layout = described(R"("char[2]")");
  const std::array bytes{std::byte{0xff}, std::byte{0}};
  const ordered_json shown = decode(layout, bytes);
  EXPECT_EQ(shown, ordered_json::parse("[255, 0]"));
  EXPECT_THAT(encode_json(layout, shown.dump()).bytes, testing::ElementsAreArray(bytes));
}

struct Mismatch {
  std::string_view type;
  std::string_view json;
  std::string_view place;  // behind the key's
  std::string_view reason;

  friend std::ostream& operator<<(std::ostream& out, const Mismatch& m) { return out << m.json; }
};

class CodecMismatch : public testing::TestWithParam<Mismatch> {};

TEST_P(CodecMismatch, NamesTheField) {
  const auto& [type, json, place, reason] = GetParam();
  Layout layout = type.find_first_of("\"{") == type.npos ? layout_of(std::string(type).c_str())
                                                         : described(type);
  const auto encoded = encode_json(layout, json);
  EXPECT_THAT(encoded.faults,
              Contains(AllOf(HasSubstr("/maps/0/entries/3/key" + std::string(place) + ": "),
                             HasSubstr(std::string(reason)))));
}

INSTANTIATE_TEST_SUITE_P(
    All, CodecMismatch,
    testing::Values(
        Mismatch{R"("u8")", "256", "", "expected an integer in 0..255"},
        Mismatch{R"("u8")", "-1", "", "expected an integer in 0..255"},
        Mismatch{R"("i8")", "128", "", "expected an integer in -128..127"},
        Mismatch{R"("u64")", "18446744073709551616", "", "0..18446744073709551615"},
        Mismatch{R"("u32")", "1.5", "", "expected an integer"},
        Mismatch{R"("u32")", R"("ten")", "", "expected an integer"},
        Mismatch{R"("bool")", R"("yes")", "", "expected true or false"},
        Mismatch{R"("ipv4")", R"("2001:db8::1")", "", "expected an IPv4 address"},
        Mismatch{R"("ipv6")", R"("nowhere")", "", "expected an IP address"},
        Mismatch{R"("char[4]")", R"("nginx")", "", "has 5 bytes; there is room for 4"},
        Mismatch{R"("u8[3]")", "[1, 2]", "", "has 2 elements, not 3"},
        Mismatch{R"("u16[2]")", "[1, 65536]", "/1", "0..65535"},
        Mismatch{R"("hex[2]")", R"("0x0a")", "", "expected 2 bytes in hex"},
        Mismatch{R"("hex[2]")", R"("0x0azz")", "", "expected 2 bytes in hex"},
        Mismatch{R"("hex[2]")", "10", "", "expected 2 bytes in hex"},
        Mismatch{"lpm_key", R"({"prefixlen": 24})", "", "the field addr is missing"},
        Mismatch{"lpm_key", R"({"prefixlen": 24, "addr": "192.0.2.0", "x": 1})", "/x",
                 R"(unknown field "x"; known here: prefixlen, addr)"},
        Mismatch{"lpm_key", R"({"prefixlen": 24, "addr": "192.0.2.0", "addr": "192.0.2.0"})",
                 "/addr", R"(the field "addr" is given twice)"},
        Mismatch{"lpm_key", R"("192.0.2.0/24")", "", "expected a mapping of prefixlen, addr"},
        Mismatch{"nested", R"({"one": {"first": 300, "second": 2}})", "/one/first", "0..255"},
        Mismatch{"bits", R"({"low": 8, "middle": 0, "last": 0, "whole": 0, "wide": 0})", "/low",
                 "0..7"},
        Mismatch{"bits", R"({"low": 0, "middle": 0, "last": 16, "whole": 0, "wide": 0})", "/last",
                 "-16..15"},
        Mismatch{"either", R"({"family": 2, "v4": 1, "left": 2, "named": {"small": 1}})", "",
                 "only one member"},
        Mismatch{"either", R"({"family": 2, "named": {"small": 1}})", "",
                 "expected one of v4, v6, left, right"},
        Mismatch{"either", R"({"family": 2, "v4": 1, "named": {}})", "/named",
                 "expected one of small, large"}));

TEST(Codec, AnEnumeratorThatDoesNotExistNamesThoseThatDo) {
  Layout layout = layout_of("verdict", BTF_KIND_ENUM);
  EXPECT_THAT(encode_json(layout, R"("VERDICT_MAYBE")").faults,
              ElementsAre(HasSubstr("one of VERDICT_PASS, VERDICT_DROP, VERDICT_REJECT")));
}

TEST(Codec, AllFaultsOfAValueAreReported) {
  Layout layout = layout_of("lpm_key");
  EXPECT_EQ(encode_json(layout, R"({"prefixlen": -1, "addr": "x"})").faults.size(), 2U);
}

}  // namespace
}  // namespace mapgate::schema
