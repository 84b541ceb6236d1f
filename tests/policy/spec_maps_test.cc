// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/policy/fixture.h"

namespace mapgate::policy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Parsed parse(std::string_view text) {
  return parse_spec(text, SpecFormat::kYaml, "/etc/mapgate/spec.yaml");
}

// A spec with one map, its fields on the third line.
std::string one_map(std::string_view fields) {
  return "formatVersion: 1\nmaps:\n  - {name: blocklist, pin: /sys/fs/bpf/xdp/blocklist, " +
         std::string(fields) + "}\n";
}

TEST(SpecMaps, AreReadWholeWithoutAPolicy) {
  const auto spec = parse(R"(formatVersion: 1
maps:
  - name: blocklist
    pin: /sys/fs/bpf/xdp/../xdp/blocklist
    prune: true
    layout: {key: {prefixlen: u32, addr: ipv4}, value: {action: u8}}
    create: {type: lpm_trie, maxEntries: 1024}
    entriesFrom: blocklist.jsonl
    hints: {value.action: hex}
    entries:
      - {key: {prefixlen: 24, addr: 192.0.2.0}, value: {action: 1}}
)");
  ASSERT_TRUE(spec) << spec.error().front().to_string();
  ASSERT_EQ(spec->maps.size(), 1U);
  const MapSpec& map = spec->maps.front();
  EXPECT_EQ(map.name, "blocklist");
  EXPECT_EQ(map.pin, "/sys/fs/bpf/xdp/blocklist");
  EXPECT_TRUE(map.prune);
  EXPECT_EQ(map.entries_from, "/etc/mapgate/blocklist.jsonl");
  ASSERT_TRUE(map.key_layout && map.value_layout && map.create);
  EXPECT_EQ(map.create->key_size, 8U);
  EXPECT_EQ(map.create->value_size, 1U);
  EXPECT_EQ(map.create->max_entries, 1024U);
  EXPECT_EQ(map.create->flags, static_cast<unsigned>(BPF_F_NO_PREALLOC));
  ASSERT_EQ(map.hints.size(), 1U);
  EXPECT_EQ(map.hints.front().path, "value.action");
  EXPECT_EQ(map.entries.items.size(), 1U);
  EXPECT_EQ(map.pointer, "/maps/0");
}

TEST(SpecMaps, LeaveAloneWhatIsNotDeclaredUnlessToldOtherwise) {
  const auto spec = parse(one_map("entries: []"));
  ASSERT_TRUE(spec);
  EXPECT_FALSE(spec->maps.front().prune);
  EXPECT_FALSE(spec->maps.front().create);
}

struct Fault {
  std::string_view fields;
  std::string_view place;
  std::string_view reason;

  friend std::ostream& operator<<(std::ostream& out, const Fault& f) { return out << f.fields; }
};

class SpecMapsFault : public testing::TestWithParam<Fault> {};

TEST_P(SpecMapsFault, IsRefusedWithItsPlace) {
  const auto& [fields, place, reason] = GetParam();
  const auto found = faults(parse(one_map(fields)));
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found.front(), HasSubstr("/etc/mapgate/spec.yaml:3:"));
  EXPECT_THAT(found.front(), HasSubstr(": /maps/0" + std::string(place) + ": "));
  EXPECT_THAT(found.front(), HasSubstr(std::string(reason)));
}

INSTANTIATE_TEST_SUITE_P(
    All, SpecMapsFault,
    testing::Values(
        Fault{"entry: []", "/entry", "unknown field \"entry\""},
        Fault{"prune: 1", "/prune", "expected true or false"},
        Fault{"entries: {}", "/entries", "expected a list"},
        Fault{"entries: [{key: 1}]", "/entries/0", "the field value is missing"},
        Fault{"entries: [{key: 1, value: 1, ttl: 1}]", "/entries/0/ttl", "unknown field"},
        Fault{"entriesFrom: ''", "/entriesFrom", "is not a path"},
        Fault{"layout: {key: u32}", "/layout", "the field value is missing"},
        Fault{"layout: {key: u33, value: u8}", "/layout/key", "\"u33\" is not a type"},
        Fault{"layout: {key: 'u8[0]', value: u8}", "/layout/key", "has no count"},
        Fault{"layout: {key: 'u64[65535]', value: u8}", "/layout/key", "has no count"},
        Fault{"layout: {key: {}, value: u8}", "/layout/key", "at least one field"},
        Fault{"layout: {key: {a: u8, a: u8}, value: u8}", "/layout/key/a", "given twice"},
        Fault{"create: {type: lru_hash, maxEntries: 1, keySize: 4, valueSize: 4}", "/create/type",
              "\"lru_hash\" is not one of hash, lpm_trie, array, percpu_hash, percpu_array"},
        Fault{"create: {type: hash, maxEntries: 1, keySize: 4}", "/create",
              "the field valueSize is missing"},
        Fault{"create: {type: hash, maxEntries: 0, keySize: 4, valueSize: 4}", "/create/maxEntries",
              "expected an integer in 1.."},
        Fault{"create: {type: array, maxEntries: 1, keySize: 8, valueSize: 4}", "/create",
              "the key of an array has 4 bytes"},
        Fault{"create: {type: percpu_array, maxEntries: 1, keySize: 8, valueSize: 4}", "/create",
              "the key of an array has 4 bytes"},
        Fault{"create: {type: percpu_hash, maxEntries: 1, keySize: 8, valueSize: 32768}",
              "/create/valueSize", "expected an integer in 1..32767"},
        Fault{"create: {type: lpm_trie, maxEntries: 1, keySize: 4, valueSize: 4}", "/create",
              "4-byte prefix length"},
        Fault{"create: {type: hash, maxEntries: 1, keySize: 8, valueSize: 1}, "
              "layout: {key: u32, value: u8}",
              "/create/keySize", "keySize is 8, but the layout has 4 bytes"},
        Fault{"create: {type: hash, maxEntries: 1, keySize: 4, valueSize: 4, flags: [FAST]}",
              "/create/flags/0", "is not one of BPF_F_NO_PREALLOC"},
        Fault{"create: {type: hash_of_maps, maxEntries: 1, keySize: 4}", "/create/type",
              "inner of the map must say how"},
        Fault{"inner: {type: hash, maxEntries: 1, keySize: 4, valueSize: 4}, "
              "create: {type: hash, maxEntries: 1, keySize: 4, valueSize: 4}",
              "/create/type", "the map has inner maps, which this type has not"},
        Fault{"inner: {type: percpu_hash, maxEntries: 1, keySize: 4, valueSize: 4}", "/inner/type",
              "is not one of hash, lpm_trie, array"},
        Fault{"inner: {type: hash, maxEntries: 1, keySize: 4}", "/inner",
              "the field valueSize is missing"},
        Fault{"inner: {type: hash, maxEntries: 1, keySize: 4, valueSize: 4}, "
              "layout: {key: u32, value: u32}",
              "/layout/value", "known here: key"},
        Fault{"inner: {type: hash, maxEntries: 1, keySize: 4, valueSize: 4}, "
              "layout: {key: u32}, create: {type: hash_of_maps, maxEntries: 1, valueSize: 8}",
              "/create/valueSize", "valueSize is 8, but the layout has 4 bytes"},
        Fault{"hints: {addr: hex}", "/hints/addr", "is not a path"},
        Fault{"hints: {key.addr: colour}", "/hints/key.addr", "is not one of address"}));

TEST(SpecMaps, MustHaveANameAndAPin) {
  EXPECT_THAT(
      faults(parse("formatVersion: 1\nmaps: [{}]\n")),
      ElementsAre(HasSubstr("the field name is missing"), HasSubstr("the field pin is missing")));
  EXPECT_THAT(faults(parse("formatVersion: 1\nmaps: [{name: a b, pin: bpf/x}]\n")),
              ElementsAre(HasSubstr("/maps/0/name: "), HasSubstr("is not an absolute path")));
  EXPECT_THAT(faults(parse("formatVersion: 1\nmaps: [{name: mg_addresses, pin: /sys/fs/bpf/}]\n")),
              ElementsAre(HasSubstr("mapgate's own maps"), HasSubstr("is a folder")));
  EXPECT_THAT(faults(parse("formatVersion: 1\nmaps: [{name: a, pin: /a.b/c.d}]\n")),
              ElementsAre(HasSubstr("\"/a.b/c.d\" has a dot")));
}

TEST(SpecMaps, OfTheSameNameOrPinAreRefusedNamingBothPlaces) {
  EXPECT_THAT(faults(parse(R"(formatVersion: 1
maps:
  - {name: a, pin: /sys/fs/bpf/a}
  - {name: a, pin: /sys/fs/bpf/./a}
)")),
              ElementsAre(HasSubstr("spec.yaml:4:12: /maps/1/name: the name \"a\" is given twice, "
                                    "first at /maps/0/name"),
                          HasSubstr("/maps/1/pin: the pin \"/sys/fs/bpf/a\" is given twice, first "
                                    "at /maps/0/pin")));
}

TEST(SpecMaps, ASpecOfNeitherPolicyNorMapsIsRefused) {
  EXPECT_THAT(faults(parse("formatVersion: 1\nmaps: []\n")), IsEmpty());
  EXPECT_THAT(faults(parse("formatVersion: 1\n")),
              ElementsAre(HasSubstr("the field policy is missing")));
}

}  // namespace
}  // namespace mapgate::policy
