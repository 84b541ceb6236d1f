// SPDX-License-Identifier: Apache-2.0
#include "agent/control/map_reader.h"

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/maps/fake_map_calls.h"

namespace mapgate::control {
namespace {

using maps::test::bytes_of;
using maps::test::FakeMapCalls;

maps::MapInfo hash_of_numbers() {
  maps::MapInfo info;
  info.type = BPF_MAP_TYPE_HASH;
  info.key_size = 4;
  info.value_size = 8;
  info.max_entries = 5000;
  return info;
}

class MapReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t key = 0; key < 2000; ++key)
      calls.elements[bytes_of(key)] = bytes_of(std::uint64_t{key});
  }

  // The values that page after page shows.
  std::multiset<std::uint64_t> read_all(std::size_t page_size) {
    std::multiset<std::uint64_t> values;
    std::string from;
    for (int pages = 0; pages < 100; ++pages) {
      const auto page = read_map_page(calls, map, from, page_size);
      EXPECT_TRUE(page) << page.error();
      if (!page) return values;
      for (const MapEntry& entry : page->entries) {
        std::uint64_t value = 0;
        std::memcpy(&value, entry.values.front().data(), sizeof value);
        values.insert(value);
      }
      if (!page->next) return values;
      from = *page->next;
    }
    ADD_FAILURE() << "it does not end";
    return values;
  }

  static std::multiset<std::uint64_t> all() {
    std::multiset<std::uint64_t> values;
    for (std::uint64_t value = 0; value < 2000; ++value) values.insert(value);
    return values;
  }

  FakeMapCalls calls{hash_of_numbers()};
  maps::Map map = calls.map();
};

TEST_F(MapReaderTest, ReadsPageAfterPageInBatches) {
  EXPECT_EQ(read_all(300), all());
}

TEST_F(MapReaderTest, ReadsKeyByKeyWhereThereAreNoBatches) {
  calls.lookup_batch_missing = maps::kErrnoNotSupported;
  EXPECT_EQ(read_all(300), all());
}

TEST_F(MapReaderTest, MakesRoomForACrowdedBucket) {
  calls.fullest_bucket = 700;
  EXPECT_EQ(read_all(300), all());
}

TEST_F(MapReaderTest, StepsOverWhatOthersDeleteMeanwhile) {
  calls.lookup_batch_missing = maps::kErrnoNotSupported;
  calls.before_lookup = [&](const maps::test::Bytes& key) {
    if (key == bytes_of(std::uint32_t{7})) calls.elements.erase(key);
  };
  const auto page = read_map_page(calls, map, "", 3000);
  ASSERT_TRUE(page);
  for (const MapEntry& entry : page->entries) EXPECT_NE(entry.key, bytes_of(std::uint32_t{7}));
}

// A value of each CPU, at multiples of 8 bytes.
maps::test::Bytes element(std::initializer_list<std::uint32_t> values) {
  maps::test::Bytes bytes(8 * values.size(), std::byte{0xee});
  std::size_t at = 0;
  for (const std::uint32_t value : values)
    std::memcpy(bytes.data() + 8 * std::exchange(at, at + 1), &value, sizeof value);
  return bytes;
}

class PerCpuReaderTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(InBatchesAndKeyByKey, PerCpuReaderTest, testing::Bool());

TEST_P(PerCpuReaderTest, ShowsOneValueWhereTheCpusAgreeAndElseAllOfThem) {
  maps::MapInfo info = hash_of_numbers();
  info.type = BPF_MAP_TYPE_PERCPU_HASH;
  info.value_size = 4;
  FakeMapCalls calls(info, 3);
  if (GetParam()) calls.lookup_batch_missing = maps::kErrnoNotSupported;
  calls.elements[bytes_of(std::uint32_t{1})] = element({5, 5, 5});
  calls.elements[bytes_of(std::uint32_t{2})] = element({5, 5, 6});
  const maps::Map map = calls.map();
  const auto page = read_map_page(calls, map, "", 10);
  ASSERT_TRUE(page) << page.error();
  std::map<maps::test::Bytes, std::vector<maps::test::Bytes>> found;
  for (const MapEntry& entry : page->entries) found[entry.key] = entry.values;
  const auto five = bytes_of(std::uint32_t{5});
  const auto six = bytes_of(std::uint32_t{6});
  EXPECT_EQ(found[bytes_of(std::uint32_t{1})], (std::vector<maps::test::Bytes>{five}));
  EXPECT_EQ(found[bytes_of(std::uint32_t{2})], (std::vector{five, five, six}));
}

TEST_F(MapReaderTest, RefusesAPlaceThatNoPageGave) {
  for (const char* from : {"x", "b", "b00", "bzzzzzzzz", "k0000000", "00000000"})
    EXPECT_FALSE(read_map_page(calls, map, from, 10)) << from;
}

TEST_F(MapReaderTest, SaysWhyAMapCannotBeRead) {
  calls.next_lookup_batches.push_back({.error = EPERM});
  const auto page = read_map_page(calls, map, "", 10);
  ASSERT_FALSE(page);
  EXPECT_EQ(page.error(), "cannot read the map: Operation not permitted");
}

}  // namespace
}  // namespace mapgate::control
