// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_operations.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/maps/fake_map_calls.h"

namespace mapgate::maps::test {
namespace {

using namespace std::chrono_literals;
using reconciler::ErrorClass;
using testing::HasSubstr;

std::vector<Operation> writes(std::uint32_t count, bool held = false) {
  std::vector<Operation> batch;
  for (std::uint32_t key = 0; key < count; ++key) {
    batch.push_back(write(key, key + 100));
    batch.back().held = held;
  }
  return batch;
}

std::vector<Operation> erases(std::uint32_t count, bool held = false) {
  std::vector<Operation> batch;
  for (std::uint32_t key = 0; key < count; ++key) {
    batch.push_back(erase(key));
    batch.back().held = held;
  }
  return batch;
}

// Which positions failed.
std::vector<std::size_t> failed(const std::vector<Result>& results) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i].error) positions.push_back(i);
  return positions;
}

class MapOperationsTest : public testing::Test {
 protected:
  FakeMapCalls calls{hash_info(1000)};
  MapOperations operations = calls.operations();

  [[nodiscard]] std::uint64_t errors(ErrorClass error_class) const {
    return operations.status()[0].errors[static_cast<std::size_t>(error_class)];
  }
};

using BatchResults = MapOperationsTest;

TEST_F(BatchResults, OneCallCarriesOutAWholeBatch) {
  const auto results = carry_out(operations, writes(16));
  EXPECT_TRUE(failed(results).empty());
  EXPECT_EQ(calls.elements.size(), 16U);
  EXPECT_EQ(calls.update_batch_calls, 1);
  EXPECT_EQ(calls.update_calls, 0);
}

TEST_F(BatchResults, ASingleRowTakesASingleCall) {
  carry_out(operations, {write(1, 1)});
  EXPECT_EQ(calls.update_batch_calls, 0);
  EXPECT_EQ(calls.update_calls, 1);
}

TEST_F(BatchResults, TheElementAtCountFailedAndTheRestGoesOnBehindIt) {
  calls.element_errors[bytes_of(std::uint32_t{3})] = {.error = EBUSY};
  calls.element_errors[bytes_of(std::uint32_t{7})] = {.error = EDEADLK};
  const auto results = carry_out(operations, writes(9));
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{3, 7}));
  EXPECT_EQ(results[3].error->code, EBUSY);
  EXPECT_EQ(results[3].error->error_class, ErrorClass::kTransient);
  EXPECT_EQ(results[7].error->code, EDEADLK);
  EXPECT_EQ(calls.elements.size(), 7U);
  EXPECT_EQ(calls.value(8), 108);
  // Nothing was written twice: three batches, the last of one element, which is a single call.
  EXPECT_EQ(calls.update_batch_calls, 2);
  EXPECT_EQ(calls.update_calls, 1);
  EXPECT_EQ(errors(ErrorClass::kTransient), 2U);
  EXPECT_EQ(operations.status()[0].written, 7U);
}

TEST_F(BatchResults, TheFirstAndTheLastElementMayFail) {
  calls.element_errors[bytes_of(std::uint32_t{0})] = {.error = EBUSY};
  calls.element_errors[bytes_of(std::uint32_t{4})] = {.error = EBUSY};
  EXPECT_EQ(failed(carry_out(operations, writes(5))), (std::vector<std::size_t>{0, 4}));
  EXPECT_EQ(calls.elements.size(), 3U);
}

TEST_F(BatchResults, MissingKeysInABatchedDeleteAreSuccess) {
  carry_out(operations, {write(1, 1), write(2, 2), write(5, 5)});
  const auto results = carry_out(operations, erases(7));
  EXPECT_TRUE(failed(results).empty());
  EXPECT_TRUE(calls.elements.empty());
  for (std::size_t key = 0; key < 7; ++key)
    EXPECT_EQ(results[key].freed, key == 1 || key == 2 || key == 5) << key;
  EXPECT_EQ(operations.status()[0].removed, 3U);
}

struct Lie {
  int error;
  std::uint32_t count;
  std::uint32_t really_done;
};

// A batch of ten whose call fails as a whole, or says nonsense about how far it got.
class LyingCount : public MapOperationsTest, public testing::WithParamInterface<Lie> {};

TEST_P(LyingCount, OfAnUpdateIsNotBelieved) {
  const Lie& lie = GetParam();
  calls.next_update_batches.push_back({lie.error, lie.count, lie.really_done});
  calls.element_errors[bytes_of(std::uint32_t{6})] = {.error = EINVAL};
  const auto results = carry_out(operations, writes(10));
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{6}));
  EXPECT_EQ(results[6].error->error_class, ErrorClass::kPermanent);
  EXPECT_EQ(calls.update_batch_calls, 1);
  EXPECT_EQ(calls.elements.size(), 9U);
}

TEST_P(LyingCount, OfADeleteIsNotBelievedAndTheRoomItMadeIsNotForgotten) {
  carry_out(operations, writes(10));
  const Lie& lie = GetParam();
  calls.next_remove_batches.push_back({lie.error, lie.count, lie.really_done});
  const auto results = carry_out(operations, erases(10, true));
  EXPECT_TRUE(failed(results).empty());
  EXPECT_TRUE(calls.elements.empty());
  EXPECT_TRUE(std::ranges::all_of(results, &Result::freed));
  EXPECT_EQ(operations.status()[0].removed, 10U);
}

INSTANTIATE_TEST_SUITE_P(EinvalKeepsTheInput, LyingCount, testing::Values(Lie{EINVAL, 10, 0}));
INSTANTIATE_TEST_SUITE_P(Errno524KeepsTheInput, LyingCount, testing::Values(Lie{524, 10, 0}));
INSTANTIATE_TEST_SUITE_P(EnomemBefore6_8KeepsTheInput, LyingCount,
                         testing::Values(Lie{ENOMEM, 10, 0}));
INSTANTIATE_TEST_SUITE_P(EfaultInTheMiddle, LyingCount, testing::Values(Lie{EFAULT, 4, 4}));
INSTANTIATE_TEST_SUITE_P(EintrInTheMiddle, LyingCount, testing::Values(Lie{EINTR, 10, 3}));
INSTANTIATE_TEST_SUITE_P(MoreThanWasPassed, LyingCount, testing::Values(Lie{EBUSY, 11, 2}));
INSTANTIATE_TEST_SUITE_P(SuccessWithFewerDone, LyingCount, testing::Values(Lie{0, 5, 5}));
INSTANTIATE_TEST_SUITE_P(SuccessWithNothingDone, LyingCount, testing::Values(Lie{0, 0, 0}));

TEST_F(BatchResults, EnomemOfOneElementIsThatElementsAlone) {
  calls.element_errors[bytes_of(std::uint32_t{2})] = {.error = ENOMEM};
  const auto results = carry_out(operations, writes(5));
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{2}));
  EXPECT_EQ(results[2].error->error_class, ErrorClass::kTransient);
}

TEST(MapOperationsCapabilities, WithoutBatchCallsEveryElementGoesSingly) {
  FakeMapCalls calls(hash_info(1000));
  calls.update_batch_missing = calls.remove_batch_missing = calls.lookup_batch_missing = 524;
  MapOperations operations = calls.operations();
  EXPECT_FALSE(operations.status()[0].update_batch);
  EXPECT_FALSE(operations.status()[0].delete_batch);
  EXPECT_FALSE(operations.status()[0].lookup_batch);
  EXPECT_TRUE(failed(carry_out(operations, writes(20))).empty());
  EXPECT_EQ(calls.elements.size(), 20U);
  EXPECT_EQ(calls.update_calls, 20);
  EXPECT_TRUE(failed(carry_out(operations, erases(20))).empty());
  EXPECT_EQ(calls.remove_calls, 20);
  EXPECT_TRUE(calls.elements.empty());
}

using Capacity = MapOperationsTest;

TEST(MapOperationsCapacity, AFullMapFailsWhatDoesNotFitAndSaysWhichMap) {
  FakeMapCalls calls(hash_info(64));
  MapOperations operations = calls.operations();
  const auto results = carry_out(operations, writes(100));
  EXPECT_EQ(calls.elements.size(), 64U);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(results[i].error.has_value(), i >= 64) << i;
  EXPECT_EQ(results[64].error->error_class, ErrorClass::kCapacity);
  EXPECT_EQ(results[64].error->code, E2BIG);
  EXPECT_EQ(results[64].error->text, "map \"mg_test\" is full (64 entries)");
  EXPECT_EQ(operations.status()[0].entries, 64U);
  EXPECT_EQ(operations.status()[0].errors[static_cast<std::size_t>(ErrorClass::kCapacity)], 36U);
}

TEST(MapOperationsCapacity, ReplacingAnElementOfAFullMapWorks) {
  FakeMapCalls calls(hash_info(4));
  MapOperations operations = calls.operations();
  carry_out(operations, writes(4));
  EXPECT_TRUE(failed(carry_out(operations, {write(9, 9), write(1, 1), write(2, 2)})) ==
              std::vector<std::size_t>{0});
  EXPECT_EQ(calls.value(1), 1);
}

TEST(MapOperationsCapacity, WritesThatOverflowGetTheRoomThatTheBatchsDeletesMake) {
  FakeMapCalls calls(hash_info(4));
  MapOperations operations = calls.operations();
  carry_out(operations, writes(4));
  const auto results =
      carry_out(operations, {write(10, 1), write(11, 1), write(12, 1), erase(0), erase(1)});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{2}));
  EXPECT_EQ(calls.value(10), 1);
  EXPECT_EQ(calls.value(11), 1);
  EXPECT_EQ(calls.value(0), std::nullopt);
  EXPECT_EQ(operations.status()[0].entries, 4U);
}

TEST(MapOperationsCapacity, ATrieIsFullWithEnospc) {
  FakeMapCalls calls(trie_info(2));
  MapOperations operations = calls.operations();
  std::vector<Operation> batch;
  for (std::uint64_t i = 0; i < 3; ++i)
    batch.push_back({RowKey::of(0, std::uint64_t{32} | (i << 32)), row_value(i)});
  const auto results = carry_out(operations, batch);
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{2}));
  EXPECT_EQ(results[2].error->error_class, ErrorClass::kCapacity);
  EXPECT_EQ(results[2].error->code, ENOSPC);
}

// Before the fixes of December 2024.
TEST(MapOperationsCapacity, AFullTrieThatRefusesToReplaceAnElementParksTheRow) {
  FakeMapCalls calls(trie_info(1));
  MapOperations operations = calls.operations();
  const RowKey key = RowKey::of(0, std::uint64_t{32});
  ASSERT_TRUE(failed(carry_out(operations, {{key, row_value(std::uint64_t{1})}})).empty());
  const auto bytes = key.bytes();
  calls.element_errors[{bytes.begin(), bytes.end()}] = {.error = ENOSPC};
  const auto results = carry_out(operations, {{key, row_value(std::uint64_t{2}), true}});
  ASSERT_EQ(failed(results), (std::vector<std::size_t>{0}));
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kCapacity);
  EXPECT_EQ(operations.status()[0].entries, 1U);
}

TEST_F(Capacity, FullThoughThereShouldBeRoomIsTriedOnceMore) {
  calls.element_errors[bytes_of(std::uint32_t{3})] = {.error = E2BIG, .times = 1};
  EXPECT_TRUE(failed(carry_out(operations, writes(8))).empty());
  EXPECT_EQ(calls.elements.size(), 8U);
  EXPECT_EQ(errors(ErrorClass::kCapacity), 0U);
}

TEST(MapOperationsCapacity, AMapKnownToBeFullIsNotTriedTwice) {
  FakeMapCalls calls(hash_info(4));
  MapOperations operations = calls.operations();
  carry_out(operations, writes(4));
  calls.update_calls = 0;
  carry_out(operations, {write(10, 1)});
  EXPECT_EQ(calls.update_calls, 1);
}

TEST_F(MapOperationsTest, WritesComeBeforeDeletes) {
  carry_out(operations, writes(3));
  calls.journal.clear();
  carry_out(operations, {erase(1), write(3, 3), erase(2), write(4, 4), erase(0)});
  EXPECT_EQ(calls.journal, "wwddd");
}

TEST_F(MapOperationsTest, CountsAsGoneWhatOthersHaveDeletedWhenItIsToBeDeletedAnyway) {
  carry_out(operations, writes(10));
  calls.elements.erase(bytes_of(std::uint32_t{0}));
  calls.elements.erase(bytes_of(std::uint32_t{3}));
  carry_out(operations, erases(5, true));
  EXPECT_EQ(operations.status()[0].entries, 5U);
  EXPECT_EQ(operations.status()[0].removed, 3U) << "by us";
}

TEST_F(MapOperationsTest, CountsWhatIsHeldHoweverOftenItIsWritten) {
  carry_out(operations, writes(10));
  carry_out(operations, writes(10, true));
  carry_out(operations, erases(4));
  carry_out(operations, erases(4));
  const MapStatus status = operations.status()[0];
  EXPECT_EQ(status.entries, 6U);
  EXPECT_EQ(status.written, 20U);
  EXPECT_EQ(status.removed, 4U);
}

TEST_F(MapOperationsTest, RowsThatDoNotFitTheMapAreRefusedAndTheOthersCarriedOut) {
  const auto results =
      carry_out(operations, {write(1, 1),
                             {RowKey::of(0, std::uint64_t{1}), row_value(std::uint64_t{1})},
                             {RowKey::of(0, std::uint32_t{2}), row_value(std::uint32_t{1})},
                             {RowKey::of(0, std::uint64_t{1}), std::nullopt},
                             write(3, 3, 7),
                             write(4, 4)});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{1, 2, 3, 4}));
  EXPECT_EQ(results[1].error->text, "map \"mg_test\": key has 8 bytes, not 4");
  EXPECT_EQ(results[2].error->text, "map \"mg_test\": value has 4 bytes, not 8");
  EXPECT_EQ(results[4].error->text, "there is no map with index 7");
  EXPECT_EQ(results[4].target, 7U);
  for (const std::size_t i : {1U, 2U, 3U, 4U})
    EXPECT_EQ(results[i].error->error_class, ErrorClass::kPermanent);
  EXPECT_EQ(calls.elements.size(), 2U);
}

TEST(MapOperationsTrie, RefusesKeysThatAreNotCanonical) {
  FakeMapCalls calls(trie_info(1000));
  MapOperations operations = calls.operations();
  struct Key {
    std::uint32_t prefix_length;
    std::array<std::uint8_t, 4> data;
  };
  const auto results =
      carry_out(operations, {{RowKey::of(0, Key{24, {10, 0, 0, 9}}), row_value(std::uint64_t{1})},
                             {RowKey::of(0, Key{24, {10, 0, 0, 0}}), row_value(std::uint64_t{1})},
                             {RowKey::of(0, Key{33, {10, 0, 0, 0}}), row_value(std::uint64_t{1})}});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(calls.elements.size(), 1U);
}

TEST_F(MapOperationsTest, AFrozenMapFailsForGood) {
  for (std::uint32_t key = 0; key < 2; ++key)
    calls.element_errors[bytes_of(key)] = {.error = EPERM};
  const auto results = carry_out(operations, {write(0, 0), write(1, 1), erase(2)});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kPermanent);
  EXPECT_THAT(results[0].error->text, HasSubstr("map \"mg_test\": write: "));
  EXPECT_THAT(results[0].error->text, HasSubstr("frozen"));
}

TEST_F(MapOperationsTest, AMapThatIsLostAndHasNoPinStaysLost) {
  calls.element_errors[bytes_of(std::uint32_t{1})] = {.error = EBADF, .times = 1};
  auto results = carry_out(operations, {write(1, 1)});
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kTargetLost);
  results = carry_out(operations, {write(2, 2), erase(3)});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kTargetLost);
  EXPECT_EQ(results[0].error->text, "map \"mg_test\" is lost: it has no pin to open it by");
  EXPECT_TRUE(calls.elements.empty());
  const auto begun = operations.scan_begin();
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().error_class, ErrorClass::kTargetLost);
}

class ArrayOperations : public testing::Test {
 protected:
  FakeMapCalls calls{{.type = BPF_MAP_TYPE_ARRAY,
                      .key_size = 4,
                      .value_size = 8,
                      .max_entries = 8,
                      .name = "mg_array"}};
  MapOperations operations = calls.operations();
};

TEST_F(ArrayOperations, DeletingWritesZerosAndFreesNothing) {
  carry_out(operations, writes(8));
  const auto results = carry_out(operations, erases(3));
  EXPECT_TRUE(failed(results).empty());
  EXPECT_TRUE(std::ranges::none_of(results, &Result::freed));
  EXPECT_EQ(calls.value(2), 0);
  EXPECT_EQ(calls.value(3), 103);
  EXPECT_EQ(calls.remove_calls + calls.remove_batch_calls, 0);
  EXPECT_EQ(operations.status()[0].entries, 8U) << "an array's elements are always there";
  EXPECT_EQ(operations.status()[0].written, 8U);
}

TEST_F(ArrayOperations, AnIndexPastTheEndIsAPermanentErrorAndAbsentAlready) {
  const auto results =
      carry_out(operations, {write(7, 7), write(8, 8), erase(9), erase(7), erase(6)});
  EXPECT_EQ(failed(results), (std::vector<std::size_t>{1}));
  EXPECT_EQ(results[1].error->error_class, ErrorClass::kPermanent);
  EXPECT_EQ(results[1].error->text, "index is outside of map \"mg_array\" (8 entries)");
  EXPECT_EQ(calls.value(7), 0);
}

// An urgent row must not wait behind a long call.
TEST(BatchTime, StaysBelowTheLimitWhateverAnElementCosts) {
  for (const auto cost : {100ns, 1000ns, 4000ns, 50000ns}) {
    FakeMapCalls calls(hash_info(10000));
    calls.element_cost = cost;
    calls.call_cost = 2us;
    MapOperations operations = calls.operations();
    for (int round = 0; round < 3; ++round) carry_out(operations, writes(10000));
    EXPECT_LE(std::ranges::max(calls.batch_durations), 1ms) << cost.count();
    EXPECT_EQ(calls.elements.size(), 10000U);
  }
}

TEST(BatchTime, CheapElementsGoInLargeBatches) {
  FakeMapCalls calls(hash_info(100000));
  calls.element_cost = 100ns;
  MapOperations operations = calls.operations();
  carry_out(operations, writes(100000));
  EXPECT_LT(calls.update_batch_calls, 40);
}

TEST(BatchTime, AWholeBatchStaysBelowTheLimitIfItKeepsToTheLimitOfOperations) {
  for (const auto cost : {100ns, 1000ns, 4000ns, 50000ns}) {
    FakeMapCalls calls(hash_info(10000));
    calls.element_cost = cost;
    calls.call_cost = 2us;
    MapOperations operations = calls.operations();
    std::size_t largest = 0;
    const auto all = writes(10000);
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t size = std::min(operations.batch_limit(), all.size() - at);
      const auto start = calls.time;
      carry_out(operations, {all.begin() + static_cast<std::ptrdiff_t>(at),
                             all.begin() + static_cast<std::ptrdiff_t>(at + size)});
      EXPECT_LE(calls.time - start, 1ms) << cost.count();
      largest = std::max(largest, size);
      at += size;
    }
    EXPECT_GE(largest * cost, 200us) << "small batches cost more than they must";
  }
}

TEST(BatchTime, ShrinksAtOnceWhenElementsBecomeDearer) {
  FakeMapCalls calls(hash_info(100000));
  calls.element_cost = 100ns;
  MapOperations operations = calls.operations();
  carry_out(operations, writes(100000));
  calls.element_cost = 10us;
  calls.batch_durations.clear();
  carry_out(operations, writes(100000));
  EXPECT_EQ(std::ranges::count_if(calls.batch_durations, [](auto d) { return d > 1ms; }), 1);
}

class UnsuitableMap : public testing::TestWithParam<std::pair<bpf_map_type, const char*>> {};

TEST_P(UnsuitableMap, IsRefusedWithTheReason) {
  MapInfo info = hash_info(1000);
  info.type = GetParam().first;
  FakeMapCalls calls(info);
  std::vector<Map> maps;
  maps.push_back(calls.map());
  const auto created = MapOperations::create(std::move(maps), calls, calls.options());
  ASSERT_FALSE(created);
  EXPECT_THAT(created.error().text(), HasSubstr("use map \"mg_test\": "));
  EXPECT_THAT(created.error().text(), HasSubstr(GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(
    , UnsuitableMap,
    testing::Values(std::pair{BPF_MAP_TYPE_LRU_HASH, "lru_hash map evicts"},
                    std::pair{BPF_MAP_TYPE_LRU_PERCPU_HASH, "lru_percpu_hash map evicts"},
                    std::pair{BPF_MAP_TYPE_QUEUE, "maps of type 22 are not supported"}));

}  // namespace
}  // namespace mapgate::maps::test
