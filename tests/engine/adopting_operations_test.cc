// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/adopting_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bpf/abi.h"
#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

Operation put(std::uint32_t workload, std::uint64_t port_sets) {
  mg_address_key key{};
  key.workload = workload;
  return {maps::RowKey::of(0, key), maps::row_value(mg_port_sets{port_sets})};
}

Operation erase(std::uint32_t workload) {
  Operation operation = put(workload, 0);
  operation.value.reset();
  return operation;
}

class AdoptingOperationsTest : public testing::Test {
 protected:
  AdoptingOperationsTest() {
    run(maps, {put(1, 1), put(2, 2)});
    journal.clear();
  }
  std::vector<reconciler::OperationResult> run(Operations& operations,
                                               const std::vector<Operation>& batch) {
    std::vector<reconciler::OperationResult> results(batch.size());
    operations.apply(batch, results);
    return results;
  }

  Journal journal;
  FakeMaps maps{journal};
  AdoptingOperations adopting{maps};
};

TEST_F(AdoptingOperationsTest, OnlyWhatIsWrongOrMissingIsWritten) {
  ASSERT_TRUE(adopting.take_snapshot());
  const auto results = run(adopting, {put(1, 1), put(2, 7), put(3, 3)});
  EXPECT_THAT(journal,
              testing::ElementsAre("put mg_addresses 2 :: = 7", "put mg_addresses 3 :: = 3"));
  for (const auto& result : results) EXPECT_FALSE(result.error);
  EXPECT_EQ(adopting.counters().adopted, 1U);
  EXPECT_EQ(adopting.counters().written, 2U);
}

TEST_F(AdoptingOperationsTest, WhatWasSeenIsBelievedOnce) {
  ASSERT_TRUE(adopting.take_snapshot());
  run(adopting, {erase(1)});
  run(adopting, {put(1, 1)});
  EXPECT_THAT(journal,
              testing::ElementsAre("erase mg_addresses 1 ::", "put mg_addresses 1 :: = 1"));
}

TEST_F(AdoptingOperationsTest, WithoutALookEverythingIsWritten) {
  run(adopting, {put(1, 1)});
  EXPECT_THAT(journal, testing::ElementsAre("put mg_addresses 1 :: = 1"));
  ASSERT_TRUE(adopting.take_snapshot());
  adopting.drop_snapshot();
  run(adopting, {put(1, 1)});
  EXPECT_EQ(journal.size(), 2U);
}

TEST_F(AdoptingOperationsTest, ErrorsReachTheirOperations) {
  ASSERT_TRUE(adopting.take_snapshot());
  maps.fail = [](const std::string& operation) {
    return operation.contains(" 3 ") ? std::optional(reconciler::ErrorClass::kCapacity)
                                     : std::nullopt;
  };
  const auto results = run(adopting, {put(1, 1), put(3, 3), put(4, 4)});
  EXPECT_FALSE(results[0].error);
  EXPECT_TRUE(results[1].error);
  EXPECT_FALSE(results[2].error);
  EXPECT_EQ(adopting.counters().failed, 1U);
}

}  // namespace
}  // namespace mapgate::engine::test
