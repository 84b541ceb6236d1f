// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/inner_map.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/maps/fake_map_calls.h"

namespace mapgate::maps::test {
namespace {

using testing::HasSubstr;

const MapInfo kHash{
    .type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 2, .max_entries = 20000};

InnerEntry entry(std::uint32_t key, std::uint16_t value) {
  return {bytes_of(key), bytes_of(value)};
}

TEST(InnerMapValue, EqualContentsHaveEqualBytes) {
  const auto one = inner_map_value(kHash, {entry(1, 1), entry(2, 2), entry(3, 3)});
  const auto other = inner_map_value(kHash, {entry(3, 3), entry(1, 1), entry(2, 2)});
  ASSERT_TRUE(one && other);
  EXPECT_EQ(*one, *other);
  EXPECT_EQ(one->size(), 18U);
  EXPECT_EQ(inner_map_value(kHash, {})->size(), 0U);
}

TEST(InnerMapValue, GivesItsEntriesBack) {
  const auto value = inner_map_value(kHash, {entry(2, 20), entry(1, 10)});
  std::vector<InnerEntry> entries;
  for_each_inner_entry(kHash, value->bytes(), [&](auto key, auto element) {
    entries.push_back({{key.begin(), key.end()}, {element.begin(), element.end()}});
  });
  EXPECT_EQ(entries, (std::vector{entry(1, 10), entry(2, 20)}));
}

TEST(InnerMapValue, LeavesAnArraysZerosOut) {
  MapInfo array = kHash;
  array.type = BPF_MAP_TYPE_ARRAY;
  EXPECT_EQ(inner_map_value(array, {entry(0, 0), entry(1, 1), entry(2, 0)}),
            inner_map_value(array, {entry(1, 1)}));
}

TEST(InnerMapValue, SaysWhatIsWrong) {
  EXPECT_THAT(inner_map_value(kHash, {entry(1, 1), entry(1, 2)}).error(), HasSubstr("given twice"));
  EXPECT_THAT(
      inner_map_value(kHash, {{bytes_of(std::uint8_t{1}), bytes_of(std::uint16_t{1})}}).error(),
      HasSubstr("1 and 2 bytes of key and value, not 4 and 2"));
  MapInfo small = kHash;
  small.max_entries = 1;
  EXPECT_THAT(inner_map_value(small, {entry(1, 1), entry(2, 2)}).error(),
              HasSubstr("has room for 1 entries, not for 2"));
  small.type = BPF_MAP_TYPE_ARRAY;
  EXPECT_THAT(inner_map_value(small, {entry(1, 1)}).error(), HasSubstr("index 1 is outside"));
  std::vector<InnerEntry> many;
  for (std::uint32_t i = 0; i < 11000; ++i) many.push_back(entry(i, 1));
  EXPECT_THAT(inner_map_value(kHash, many).error(), HasSubstr("66000 bytes of entries, more than"));
  MapInfo trie = kHash;
  trie.type = BPF_MAP_TYPE_LPM_TRIE;
  trie.key_size = 8;
  EXPECT_THAT(
      inner_map_value(trie, {{bytes_of(std::uint64_t{0xff00000000}), bytes_of(std::uint16_t{1})}})
          .error(),
      HasSubstr("bits set past its prefix"));
}

}  // namespace
}  // namespace mapgate::maps::test
