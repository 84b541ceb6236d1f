// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mapgate/maps/map_operations.h>

#include "tests/maps/fake_map_calls.h"

namespace mapgate::maps::test {
namespace {

using namespace std::chrono_literals;
using reconciler::ErrorClass;
using Entries = std::vector<std::pair<RowKey, RowValue>>;

std::expected<Entries, reconciler::OperationError> scan(MapOperations& operations,
                                                        std::size_t max = 300) {
  if (auto begun = operations.scan_begin(); !begun) return std::unexpected(begun.error());
  Entries entries;
  // A scan that never ends is a failure of its own.
  for (int slice = 0; slice < 10000; ++slice) {
    const auto end = operations.scan_next(max, entries);
    if (!end) return std::unexpected(end.error());
    if (*end) return entries;
  }
  ADD_FAILURE() << "the scan does not end";
  return entries;
}

void fill(FakeMapCalls& calls, std::uint32_t count) {
  for (std::uint32_t key = 0; key < count; ++key)
    calls.elements[bytes_of(key)] = bytes_of(std::uint64_t{key} + 100);
}

// Every element, once.
void expect_all(const Entries& entries, std::uint32_t count) {
  std::map<std::uint32_t, std::uint64_t> found;
  for (const auto& [key, value] : entries) {
    std::uint64_t number;
    ASSERT_EQ(value.size(), sizeof number);
    std::memcpy(&number, value.data(), sizeof number);
    EXPECT_TRUE(found.emplace(key.as<std::uint32_t>(), number).second);
    EXPECT_EQ(number, key.as<std::uint32_t>() + 100);
  }
  EXPECT_EQ(found.size(), count);
}

class ScanBy : public testing::TestWithParam<bool> {
 protected:
  ScanBy() { calls.lookup_batch_missing = GetParam() ? 0 : 524; }  // a hash: by buckets, or by keys
  FakeMapCalls calls{hash_info(5000)};
};

INSTANTIATE_TEST_SUITE_P(LookupBatch, ScanBy, testing::Values(true));
INSTANTIATE_TEST_SUITE_P(NextKey, ScanBy, testing::Values(false));

TEST_P(ScanBy, FindsEveryElementOnce) {
  for (const std::uint32_t count : {0U, 1U, 255U, 256U, 257U, 3000U}) {
    calls.elements.clear();
    fill(calls, count);
    MapOperations operations = calls.operations();
    const auto entries = scan(operations);
    ASSERT_TRUE(entries);
    expect_all(*entries, count);
    EXPECT_EQ(operations.status()[0].entries, count);
    EXPECT_EQ(operations.status()[0].written, 0U);
  }
}

TEST_P(ScanBy, EndsWithAnErrorWhenItIsAlwaysSetBackToTheStart) {
  fill(calls, 3000);
  calls.forgets_cursor = true;
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_FALSE(entries);
  EXPECT_EQ(entries.error().error_class, ErrorClass::kTransient);
  EXPECT_THAT(entries.error().text, testing::HasSubstr("changes faster than it is read"));
}

TEST_P(ScanBy, ComesInSlices) {
  fill(calls, 3000);
  MapOperations operations = calls.operations();
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  EXPECT_EQ(operations.scan_next(300, entries), false);
  EXPECT_GT(entries.size(), 0U);
  EXPECT_LE(entries.size(), 300U);
}

TEST_P(ScanBy, CountsWhatIsWrittenAndRemovedWhileItRuns) {
  fill(calls, 3000);
  MapOperations operations = calls.operations();
  ASSERT_TRUE(scan(operations));
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  ASSERT_EQ(operations.scan_next(300, entries), false);
  // Behind the cursor and before it.
  carry_out(operations, {write(4000, 4100), erase(0), erase(2999)});
  while (!operations.scan_next(300, entries).value()) continue;
  EXPECT_EQ(operations.status()[0].entries, calls.elements.size());
}

TEST_P(ScanBy, CountsWrongByNoMoreThanWhatItsOwnSideDidWhileItRan) {
  MapOperations operations = calls.operations();
  ASSERT_TRUE(scan(operations));
  fill(calls, 3000);  // by others
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  ASSERT_EQ(operations.scan_next(300, entries), false);
  carry_out(operations, {write(4000, 4100), erase(0), erase(2999)});
  while (!operations.scan_next(300, entries).value()) continue;
  const auto held = static_cast<std::int64_t>(calls.elements.size());
  EXPECT_LE(std::abs(static_cast<std::int64_t>(operations.status()[0].entries) - held), 3);
}

TEST_P(ScanBy, ForgetsWhatOthersRemoved) {
  MapOperations operations = calls.operations();
  carry_out(operations, {write(1, 101), write(2, 102)});
  calls.elements.erase(bytes_of(std::uint32_t{1}));
  EXPECT_EQ(operations.status()[0].entries, 2U);
  expect_all(scan(operations).value(), 1);
  EXPECT_EQ(operations.status()[0].entries, 1U);
}

// Deleting what a scan has just shown is what a resync does.
TEST_P(ScanBy, IsNotSetBackByDeletesOfWhatItHasShown) {
  fill(calls, 3000);
  MapOperations operations = calls.operations();
  ASSERT_TRUE(operations.scan_begin());
  Entries all;
  for (bool end = false; !end;) {
    Entries slice;
    end = operations.scan_next(300, slice).value();
    std::vector<Operation> batch;
    for (const auto& entry : slice) {
      batch.push_back({entry.first, std::nullopt});
      all.push_back(entry);
    }
    carry_out(operations, batch);
  }
  expect_all(all, 3000);
  EXPECT_TRUE(calls.elements.empty());
}

TEST_P(ScanBy, ShowsNothingTwiceWhenTheVeryLastElementGoes) {
  fill(calls, 256);
  MapOperations operations = calls.operations();
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  bool end = false;
  while (entries.size() < 256) end = operations.scan_next(256, entries).value();
  carry_out(operations, {{entries.back().first, std::nullopt}});
  while (!end) end = operations.scan_next(256, entries).value();
  expect_all(entries, 256);
}

TEST_P(ScanBy, FindsTheRestWhenItsPlaceAndWhatFollowsIsDeleted) {
  fill(calls, 3000);
  MapOperations operations = calls.operations();
  ASSERT_TRUE(scan(operations));
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  ASSERT_EQ(operations.scan_next(256, entries), false);
  // The keys shown last and the next ones, whatever their order in the map: all but every tenth.
  std::vector<Operation> batch;
  std::uint32_t stay = 0;
  for (std::uint32_t key = 0; key < 3000; ++key) {
    if (key % 10 == 0)
      ++stay;
    else
      batch.push_back(erase(key));
  }
  carry_out(operations, batch);
  while (!operations.scan_next(256, entries).value()) continue;
  std::erase_if(entries, [](const std::pair<RowKey, RowValue>& entry) {
    return entry.first.as<std::uint32_t>() % 10 != 0;
  });
  EXPECT_EQ(entries.size(), stay);
  EXPECT_EQ(operations.status()[0].entries, stay);
}

class LookupBatch : public testing::Test {
 protected:
  FakeMapCalls calls{hash_info(5000)};
};

TEST_F(LookupBatch, DoublesItsRoomWhenABucketDoesNotFit) {
  fill(calls, 3000);
  calls.fullest_bucket = 1000;
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_TRUE(entries);
  expect_all(*entries, 3000);
  EXPECT_EQ(calls.lookup_sizes[0], 256U);
  EXPECT_EQ(calls.lookup_sizes[1], 512U);
  EXPECT_EQ(calls.lookup_sizes[2], 1024U);
  // It remembers.
  EXPECT_GE(calls.lookup_sizes[3], 1024U);
}

TEST_F(LookupBatch, GivesUpDoublingWhenEveryElementWouldFit) {
  calls.fullest_bucket = 1U << 30;
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_FALSE(entries);
  EXPECT_EQ(entries.error().code, ENOSPC);
  EXPECT_LE(std::ranges::max(calls.lookup_sizes), 4U * 5000);
}

TEST_F(LookupBatch, AnInterruptedCallIsMadeAgain) {
  fill(calls, 700);
  calls.next_lookup_batches = {{.error = EINTR}, {.error = EINTR}};
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_TRUE(entries);
  expect_all(*entries, 700);
}

TEST_F(LookupBatch, WhatAnInterruptedCallHasReadIsKept) {
  fill(calls, 700);
  calls.next_lookup_batches = {{.error = EINTR, .really_done = 10}};
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_TRUE(entries);
  expect_all(*entries, 700);
}

TEST_F(LookupBatch, EndlessInterruptionIsATransientError) {
  for (int i = 0; i < 100; ++i) calls.next_lookup_batches.push_back({.error = EINTR});
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_FALSE(entries);
  EXPECT_EQ(entries.error().code, EINTR);
  EXPECT_EQ(entries.error().error_class, ErrorClass::kTransient);
}

TEST_F(LookupBatch, AnErrorEndsTheScanAndTheNextOneIsWhole) {
  fill(calls, 700);
  MapOperations operations = calls.operations();
  calls.next_lookup_batches = {{.error = ENOMEM}};
  ASSERT_FALSE(scan(operations));
  expect_all(scan(operations).value(), 700);
}

TEST_F(LookupBatch, StaysWithinTheTimeLimit) {
  fill(calls, 5000);
  calls.element_cost = 1us;
  MapOperations operations = calls.operations();
  ASSERT_TRUE(operations.scan_begin());
  Entries entries;
  for (bool end = false; !end;) {
    const auto start = calls.time;
    end = operations.scan_next(100000, entries).value();
    EXPECT_LE(calls.time - start, 1ms);
  }
  expect_all(entries, 5000);
}

// The kernel's cursor has four bytes; the fake writes as many, and a sanitizer watches.
TEST(LookupBatchCursor, FitsThoughAKeyIsShorter) {
  MapInfo info = hash_info(5000);
  info.key_size = 2;
  FakeMapCalls calls(info);
  for (std::uint16_t key = 0; key < 600; ++key)
    calls.elements[bytes_of(key)] = bytes_of(std::uint64_t{key});
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_TRUE(entries);
  EXPECT_EQ(entries->size(), 600U);
}

TEST(ScanByNextKey, AnElementThatVanishesUnderItDoesNotSetItBack) {
  FakeMapCalls calls(hash_info(5000));
  calls.lookup_batch_missing = 524;
  fill(calls, 500);
  calls.before_lookup = [&](const Bytes& key) {
    // Every fifth is gone when it is looked up.
    std::uint32_t number;
    std::memcpy(&number, key.data(), sizeof number);
    if (number % 5 == 0) calls.elements.erase(key);
  };
  MapOperations operations = calls.operations();
  const auto entries = scan(operations);
  ASSERT_TRUE(entries);
  expect_all(*entries, 400);
}

TEST(ScanOfATrie, ShowsKeysInCanonicalForm) {
  const MapInfo info = trie_info(5000);
  struct Key {
    std::uint32_t prefix_length;
    std::array<std::uint8_t, 4> data;
  };
  for (const int missing : {0, 524}) {
    FakeMapCalls calls(info);
    calls.lookup_batch_missing = missing;
    calls.elements[bytes_of(Key{24, {10, 0, 0, 9}})] = bytes_of(std::uint64_t{1});
    MapOperations operations = calls.operations();
    const auto entries = scan(operations);
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), 1U);
    EXPECT_EQ(entries->front().first, RowKey::of(0, Key{24, {10, 0, 0, 0}}));
  }
}

TEST(ScanOfAnArray, ShowsEveryElementAndZerosAreAbsence) {
  MapInfo info = hash_info(1000);
  info.type = BPF_MAP_TYPE_ARRAY;
  FakeMapCalls calls(info);
  calls.elements[bytes_of(std::uint32_t{3})] = bytes_of(std::uint64_t{103});
  calls.elements[bytes_of(std::uint32_t{999})] = bytes_of(std::uint64_t{1099});
  MapOperations operations = calls.operations();
  Entries entries = scan(operations).value();
  EXPECT_EQ(entries.size(), 1000U);
  EXPECT_EQ(operations.status()[0].entries, 1000U);
  std::erase_if(
      entries, [&](const auto& entry) { return operations.is_absence(entry.first, entry.second); });
  expect_all(entries, 2);
}

}  // namespace
}  // namespace mapgate::maps::test
