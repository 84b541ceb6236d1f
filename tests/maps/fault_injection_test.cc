// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/fault_injection.h>

#include <chrono>

#include <gtest/gtest.h>

#include "tests/maps/fake_map_calls.h"

namespace mapgate::maps::test {
namespace {

using namespace std::chrono_literals;
using reconciler::ErrorClass;

class FaultInjection : public testing::Test {
 protected:
  FakeMapCalls calls{{.type = BPF_MAP_TYPE_HASH,
                      .key_size = 4,
                      .value_size = 8,
                      .max_entries = 64,
                      .name = "mg_test"}};
  MapOperations inner = calls.operations();
};

TEST_F(FaultInjection, DelaysBatchesWithWritesAndNoOthers) {
  reconciler::Duration slept{};
  FaultInjectingOperations faulty(
      inner,
      {.write_delay = 20ms, .sleep = [&](reconciler::Duration d) { slept += d; }, .error = {}});
  carry_out(faulty, {write(1, 10), write(2, 20), erase(3)});
  EXPECT_EQ(slept, 20ms);
  carry_out(faulty, {erase(1)});
  EXPECT_EQ(slept, 20ms);
  EXPECT_EQ(calls.value(1), std::nullopt);
  EXPECT_EQ(calls.value(2), 20);
}

TEST_F(FaultInjection, FailsChosenRowsAndCarriesOutTheOthers) {
  const auto error = [](const Operation& operation) -> std::optional<reconciler::OperationError> {
    if (operation.key.as<std::uint32_t>() % 2 == 0) return std::nullopt;
    return reconciler::OperationError{ErrorClass::kPermanent, EPERM, "injected"};
  };
  FaultInjectingOperations faulty(inner, {.write_delay = {}, .sleep = {}, .error = error});
  const auto results =
      carry_out(faulty, {write(1, 10), write(2, 20), erase(3), erase(2), write(5, 50)});
  EXPECT_EQ(results[0].error->text, "injected");
  EXPECT_FALSE(results[1].error);
  EXPECT_EQ(results[2].error->code, EPERM);
  EXPECT_TRUE(results[3].freed);
  EXPECT_TRUE(results[4].error);
  EXPECT_TRUE(calls.elements.empty());
}

TEST_F(FaultInjection, PassesScansOn) {
  carry_out(inner, {write(1, 10)});
  FaultInjectingOperations faulty(inner, {});
  ASSERT_TRUE(faulty.scan_begin());
  std::vector<std::pair<RowKey, RowValue>> entries;
  EXPECT_EQ(faulty.scan_next(100, entries), true);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].first, RowKey::of(0, std::uint32_t{1}));
}

}  // namespace
}  // namespace mapgate::maps::test
