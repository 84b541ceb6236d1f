// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/declared_rows.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mapgate::engine {
namespace {

using policy::MapSpec;
using policy::SpecError;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr std::string_view kMap = R"(formatVersion: 1
maps:
  - name: blocklist
    pin: /sys/fs/bpf/blocklist
    layout: {key: {prefixlen: u32, addr: ipv4}, value: u32}
)";

class DeclaredRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "declared_rows_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    info.type = BPF_MAP_TYPE_LPM_TRIE;
    info.key_size = 8;
    info.value_size = 4;
    info.max_entries = 100;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  MapSpec spec(const std::string& more, std::string_view map = kMap) {
    auto parsed = policy::parse_spec(std::string(map) + more, policy::SpecFormat::kYaml, file());
    if (!parsed) {
      ADD_FAILURE() << parsed.error().front().to_string();
      return {};
    }
    return std::move(parsed->maps.front());
  }
  [[nodiscard]] std::string file() const { return folder_ + "/spec.yaml"; }
  void write_lines(const std::string& text) const {
    std::ofstream(folder_ + "/lines.jsonl", std::ios::binary) << text;
  }

  // What the spec's rows are, or its faults.
  std::expected<DeclaredRows, std::vector<std::string>> load(const MapSpec& map) {
    DeclaredTarget target{
        info, {schema::hex_layout(info.key_size), schema::hex_layout(info.value_size)}, inner};
    if (auto chosen = choose_layouts(file(), map, target); !chosen)
      return std::unexpected(texts(chosen.error()));
    auto rows = load_declared_rows(file(), map, target, stop.get_token());
    if (!rows) return std::unexpected(texts(rows.error()));
    return std::move(*rows);
  }
  std::vector<std::string> faults(const MapSpec& map) {
    const auto rows = load(map);
    return rows ? std::vector<std::string>() : rows.error();
  }
  static std::vector<std::string> texts(const std::vector<SpecError>& errors) {
    std::vector<std::string> result;
    for (const SpecError& error : errors) result.push_back(error.to_string());
    return result;
  }

  std::string folder_;
  std::optional<InnerTarget> inner;
  maps::MapInfo info;
  std::stop_source stop;
};

TEST_F(DeclaredRowsTest, ComeFromTheSpecAndFromAFile) {
  write_lines(R"({"key": {"prefixlen": 8, "addr": "10.0.0.0"}, "value": 2}
{"value": 3, "key": {"addr": "10.1.0.0", "prefixlen": 16}})");
  auto rows =
      load(spec("    entries: [{key: {prefixlen: 24, addr: 192.0.2.0}, value: 1}]\n    "
                "entriesFrom: lines.jsonl\n"));
  ASSERT_TRUE(rows) << rows.error().front();
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_THAT(rows->key(0), ElementsAre(std::byte{24}, std::byte{0}, std::byte{0}, std::byte{0},
                                        std::byte{192}, std::byte{0}, std::byte{2}, std::byte{0}));
  EXPECT_EQ(rows->value(2)[0], std::byte{3});
  for (std::size_t row = 0; row < rows->size(); ++row) EXPECT_TRUE(rows->contains(rows->key(row)));
  std::array<std::byte, 8> other{};
  EXPECT_FALSE(rows->contains(other));
}

TEST_F(DeclaredRowsTest, AFaultInTheSpecHasItsPlace) {
  EXPECT_THAT(
      faults(spec("    entries:\n      - {key: {prefixlen: 24, addr: 192.0.2.0}, value: ten}\n")),
      ElementsAre(file() + ":7:56: /maps/0/entries/0/value: expected an integer in 0..4294967295"));
}

TEST_F(DeclaredRowsTest, ABadLineHasItsNumber) {
  write_lines(R"({"key": {"prefixlen": 8, "addr": "10.0.0.0"}, "value": 2}
{"key": {"prefixlen": 8, "addr": "11.0.0.0"}, "value": 2
{"key": {"prefixlen": 8, "addr": "12.0.0.0"}, "worth": 2}
{"key": {"prefixlen": 8, "addr": "12.0.0.1"}, "value": -1}

)");
  const auto found = faults(spec("    entriesFrom: lines.jsonl\n"));
  const std::string lines = folder_ + "/lines.jsonl:";
  EXPECT_THAT(found,
              ElementsAre(HasSubstr(lines + "2:57: not JSON: "),
                          HasSubstr(lines + "3:1: the field value is missing"),
                          HasSubstr(lines + "3:47: /worth: unknown field \"worth\""),
                          HasSubstr(lines + "4:9: /key: bits are set behind the prefix length"),
                          HasSubstr(lines + "4:56: /value: expected an integer"),
                          HasSubstr(lines + "5:1: not JSON: ")));
}

TEST_F(DeclaredRowsTest, ThousandsOfBadLinesMakeAHundredFaults) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "7\n";
  write_lines(text);
  EXPECT_THAT(faults(spec("    entriesFrom: lines.jsonl\n")), SizeIs(policy::kMaxSpecErrors));
}

TEST_F(DeclaredRowsTest, AFileThatDoesNotExistIsAFault) {
  EXPECT_THAT(faults(spec("    entriesFrom: nowhere.jsonl\n")),
              ElementsAre(AllOf(HasSubstr("/maps/0/entriesFrom: " + folder_ +
                                          "/nowhere.jsonl: cannot be opened: No such file"),
                                Not(HasSubstr(":0:")))));
}

TEST_F(DeclaredRowsTest, AKeyGivenTwiceIsRefusedNamingBothPlaces) {
  write_lines(R"({"key": {"prefixlen": 8, "addr": "10.0.0.0"}, "value": 2}
{"key": {"prefixlen": 24, "addr": "192.0.2.0"}, "value": 3}
{"key": {"prefixlen": 8, "addr": "10.0.0.0"}, "value": 2}
)");
  EXPECT_THAT(faults(spec("    entries: [{key: {prefixlen: 24, addr: 192.0.2.0}, value: 1}]\n"
                          "    entriesFrom: lines.jsonl\n")),
              ElementsAre(folder_ + "/lines.jsonl:2:1: the key is given twice, first at " + file() +
                              ":6: /maps/0/entries/0",
                          folder_ + "/lines.jsonl:3:1: the key is given twice, first at " +
                              folder_ + "/lines.jsonl:1"));
}

TEST_F(DeclaredRowsTest, APrefixLongerThanItsAddressIsRefused) {
  EXPECT_THAT(faults(spec("    entries: [{key: {prefixlen: 33, addr: 192.0.2.0}, value: 1}]\n")),
              ElementsAre(HasSubstr("the prefix length is 33; the longest is 32")));
}

TEST_F(DeclaredRowsTest, AnIndexBehindTheEndOfAnArrayIsRefused) {
  info = {.type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 4};
  const MapSpec map = spec("    entries: [{key: 3, value: 1}, {key: 4, value: 1}]\n",
                           "formatVersion: 1\nmaps:\n  - name: limits\n    pin: /sys/fs/bpf/l\n"
                           "    layout: {key: u32, value: u32}\n");
  EXPECT_THAT(faults(map),
              ElementsAre(HasSubstr("/maps/0/entries/1/key: the array ends at index 3")));
}

TEST_F(DeclaredRowsTest, ALayoutOfAnotherSizeThanTheMapsIsRefused) {
  info.value_size = 8;
  EXPECT_THAT(faults(spec("")), ElementsAre(HasSubstr("/maps/0/layout/value: has 4 bytes; the "
                                                      "map's have 8")));
}

TEST_F(DeclaredRowsTest, AHintThatDoesNotFitIsRefusedWithItsPlace) {
  EXPECT_THAT(
      faults(spec("    hints: {key.nobody: hex}\n")),
      ElementsAre(HasSubstr(":6:13: /maps/0/hints/key.nobody: there is no field \"nobody\"")));
}

TEST_F(DeclaredRowsTest, AMapOfAnotherKindThanWouldBeMadeIsRefused) {
  info.type = BPF_MAP_TYPE_HASH;
  EXPECT_THAT(faults(spec("    create: {type: lpm_trie, maxEntries: 8}\n")),
              ElementsAre(HasSubstr("/maps/0/create/type: the map at /sys/fs/bpf/blocklist is of "
                                    "type hash")));
}

TEST_F(DeclaredRowsTest, TheKeyOfATrieBeginsWithItsPrefixLength) {
  for (const char* layout :
       {"u64", "{addr: ipv4, prefixlen: u32}", "{prefixlen: be32, addr: ipv4}"}) {
    const std::string map =
        "formatVersion: 1\nmaps:\n  - name: a\n    pin: /sys/fs/bpf/a\n    layout: "
        "{key: " +
        std::string(layout) + ", value: u32}\n";
    EXPECT_THAT(faults(spec("", map)),
                ElementsAre(HasSubstr("/maps/0/layout/key: the key of an LPM trie")))
        << layout;
  }
  const std::string hex =
      "formatVersion: 1\nmaps: [{name: a, pin: /sys/fs/bpf/a, entries: [{key: "
      "\"0x180000000a000000\", "
      "value: \"0x01000000\"}]}]\n";
  EXPECT_THAT(faults(spec("", hex)), testing::IsEmpty());
}

class OuterRowsTest : public DeclaredRowsTest {
 protected:
  void SetUp() override {
    DeclaredRowsTest::SetUp();
    info.type = BPF_MAP_TYPE_HASH_OF_MAPS;
    info.key_size = info.value_size = 4;
  }
  MapSpec outer(const std::string& more) {
    return spec(more, "formatVersion: 1\nmaps:\n  - name: tenants\n    pin: /sys/fs/bpf/tenants\n");
  }
  static constexpr const char* kInner =
      "    layout: {key: u32}\n"
      "    inner: {type: hash, maxEntries: 2, layout: {key: ipv4, value: u32}}\n";
};

TEST_F(OuterRowsTest, HaveTheEntriesOfTheirInnerMapsAsValues) {
  write_lines(R"({"key": 7, "value": [{"key": "10.0.0.1", "value": 1}]})"
              "\n");
  const auto rows =
      load(outer(std::string(kInner) + "    entriesFrom: lines.jsonl\n"
                                       "    entries:\n      - {key: 1, value: []}\n"
                                       "      - {key: 2, value: [{key: 10.0.0.2, value: 2}, "
                                       "{key: 10.0.0.1, value: 1}]}\n"));
  ASSERT_TRUE(rows) << rows.error().front();
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_EQ(rows->value(0).size(), 0U);
  EXPECT_EQ(rows->value(1).size(), 16U);
  EXPECT_EQ(rows->value(1)[3], std::byte{1}) << "in the order of their keys";
  EXPECT_EQ(rows->key(2)[0], std::byte{7});
  EXPECT_EQ(rows->value(2).size(), 8U);
  EXPECT_TRUE(rows->contains(rows->key(2)));
}

TEST_F(OuterRowsTest, FaultsOfAnInnerEntryHaveItsPlace) {
  EXPECT_THAT(
      faults(outer(std::string(kInner) +
                   "    entries:\n      - {key: 1, value: [{key: 10.0.0.1, value: x}]}\n"
                   "      - {key: 2, value: 5}\n"
                   "      - {key: 3, value: [{key: 10.0.0.1, value: 1}, {key: 10.0.0.1, "
                   "value: 2}]}\n"
                   "      - {key: 4, value: [{key: 1.1.1.1, value: 1}, {key: 2.2.2.2, "
                   "value: 2}, {key: 3.3.3.3, value: 3}]}\n"
                   "      - {key: 3, value: [{key: 10.0.0.1}]}\n")),
      ElementsAre(HasSubstr("/maps/0/entries/0/value/0/value: "),
                  HasSubstr("/maps/0/entries/1/value: "),
                  HasSubstr("/maps/0/entries/2/value/1/key: the key is given twice, first at "
                            "/maps/0/entries/2/value/0"),
                  HasSubstr("/maps/0/entries/3/value: the inner map has room for 2 entries"),
                  HasSubstr("/maps/0/entries/4/value/0: the field value is missing")));
}

TEST_F(OuterRowsTest, AnIndexOfAnInnerArrayIsGivenOnceThoughItsValueIsZero) {
  EXPECT_THAT(
      faults(outer("    layout: {key: u32}\n"
                   "    inner: {type: array, maxEntries: 4, layout: {key: u32, value: u32}}\n"
                   "    entries:\n      - {key: 1, value: [{key: 3, value: 7}, {key: 0, value: 1}, "
                   "{key: 3, value: 0}]}\n")),
      ElementsAre(HasSubstr("/maps/0/entries/0/value/2/key: the key is given twice, first at "
                            "/maps/0/entries/0/value/0")));
}

TEST_F(OuterRowsTest, AnInnerMapThatIsTooLargeForARowIsNamed) {
  std::string entries;
  for (int i = 0; i < 8192; ++i) entries += "{key: " + std::to_string(i) + ", value: 1}, ";
  EXPECT_THAT(
      faults(outer("    layout: {key: u32}\n"
                   "    inner: {type: hash, maxEntries: 9000, layout: {key: u32, value: u32}}\n"
                   "    entries:\n      - {key: 1, value: []}\n      - {key: 2, value: [" +
                   entries + "]}\n")),
      ElementsAre(HasSubstr("/maps/0/entries/1/value: the inner map has 65536 bytes of entries, "
                            "more than 65535")));
}

TEST_F(OuterRowsTest, AreReadByAnInnerMapThatIsThere) {
  inner = InnerTarget{{.type = BPF_MAP_TYPE_HASH, .key_size = 2, .value_size = 1, .max_entries = 8},
                      {schema::hex_layout(2), schema::hex_layout(1)}};
  const auto rows = load(
      outer("    entries: [{key: \"0x01000000\", value: [{key: \"0x0102\", value: \"0x03\"}]}]\n"));
  ASSERT_TRUE(rows) << rows.error().front();
  EXPECT_EQ(rows->value(0).size(), 3U);
}

TEST_F(OuterRowsTest, AHintForTheValuesOfTheOuterMapIsRefused) {
  EXPECT_THAT(faults(outer(std::string(kInner) + "    hints: {value: hex}\n")),
              ElementsAre(HasSubstr("/maps/0/hints/value: the values are inner maps")));
}

TEST_F(OuterRowsTest, InnerMapsThatNobodyDescribesOrOtherwiseAreRefused) {
  EXPECT_THAT(faults(outer("    entries: []\n")),
              ElementsAre(HasSubstr("/maps/0/inner: the map at /sys/fs/bpf/tenants holds no map so "
                                    "far: say here how its inner maps are made")));
  inner = InnerTarget{{.type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8, .max_entries = 2},
                      {schema::hex_layout(4), schema::hex_layout(8)}};
  EXPECT_THAT(
      faults(outer(kInner)),
      ElementsAre(HasSubstr("/maps/0/inner: the inner maps at /sys/fs/bpf/tenants are another "
                            "kind: hash, keys of 4 and values of 8 bytes")));
  info.type = BPF_MAP_TYPE_HASH;
  inner.reset();
  EXPECT_THAT(faults(outer(kInner)),
              ElementsAre(HasSubstr("is of type hash, and has no inner maps")));
}

TEST_F(DeclaredRowsTest, LoadingEndsWhenAskedTo) {
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += R"({"key": {"prefixlen": 32, "addr": "10.0.)" + std::to_string(i / 250) + "." +
            std::to_string(i % 250) + R"("}, "value": 2})" + "\n";
  write_lines(text);
  stop.request_stop();
  EXPECT_THAT(faults(spec("    entriesFrom: lines.jsonl\n")),
              ElementsAre(HasSubstr("the daemon ends")));
}

}  // namespace
}  // namespace mapgate::engine
