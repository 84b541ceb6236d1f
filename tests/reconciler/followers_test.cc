// SPDX-License-Identifier: Apache-2.0
// Several reconcilers on one table, several threads.
#include <thread>

#include "fixture.h"

namespace mapgate::reconciler {
namespace {

class FollowersTest : public ReconcilerTest {
 protected:
  FakeTarget other_target;
  TestReconciler other{table, other_target, options};
};

TEST_F(FollowersTest, EachAppliesEveryChangeOnce) {
  for (int i = 0; i < 10; ++i) put(i, "x");
  settle();
  settle(other);
  put(3, "y");
  settle(other);
  settle();
  EXPECT_EQ(target.log.size(), 11U);
  EXPECT_EQ(other_target.log.size(), 11U);
  EXPECT_EQ(target.held, other_target.held);
}

TEST_F(FollowersTest, OneThatFailsDoesNotDisturbTheOther) {
  target.fail(1, transient());
  put(1, "x");
  run_for(10s);
  settle(other);
  EXPECT_EQ(other.lowest_unreconciled(), 2U);
  EXPECT_EQ(other_target.attempts(1), 1);
  EXPECT_EQ(reconciler.lowest_unreconciled(), 1U);
}

TEST_F(FollowersTest, AnErasedRowStaysUntilBothHaveConfirmed) {
  put(1, "x");
  settle();
  settle(other);
  erase(1);
  settle();
  EXPECT_EQ(table.size(), 1U);
  settle(other);
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(FollowersTest, OneThatComesLaterGetsEveryRow) {
  for (int i = 0; i < 10; ++i) put(i, "x");
  erase(4);
  settle();
  FakeTarget late_target;
  TestReconciler late{table, late_target, options};
  EXPECT_EQ(late.lowest_unreconciled(), 1U);
  settle(late);
  EXPECT_EQ(late_target.held, target.held);
}

TEST_F(FollowersTest, OneThatGoesDoesNotHoldErasedRows) {
  {
    FakeTarget gone_target;
    TestReconciler gone{table, gone_target, options};
    put(1, "x");
    settle();
    settle(other);
    erase(1);
    settle();
    settle(other);
    EXPECT_EQ(table.size(), 1U);
  }
  EXPECT_EQ(table.size(), 0U);
}

TEST(ThreadsTest, ManyWritersAndWaitersWithOneDriver) {
  using Numbers = Table<std::uint64_t, std::uint64_t>;
  struct Target : Operations<std::uint64_t, std::uint64_t> {
    void apply(std::span<const Operation<std::uint64_t, std::uint64_t>> batch,
               std::span<OperationResult> results) override {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (batch[i].key % 97 == 0 && ++failures % 3 != 0) {
          results[i].error = transient();
        } else if (batch[i].value) {
          held[batch[i].key] = *batch[i].value;
        } else {
          results[i].freed = held.erase(batch[i].key) > 0;
        }
      }
    }
    std::expected<void, OperationError> scan_begin() override { return {}; }
    std::expected<bool, OperationError> scan_next(
        std::size_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>&) override {
      return true;
    }
    std::map<std::uint64_t, std::uint64_t> held;
    int failures = 0;
  };
  Numbers table{Epoch::from_random(1, 1)};
  Target target;
  Options options;
  options.retry = {1us, 10us};
  Reconciler<std::uint64_t, std::uint64_t> reconciler{table, target, options};
  const auto clock = [] { return std::chrono::steady_clock::now(); };

  constexpr std::uint64_t kWriters = 3;
  constexpr std::uint64_t kWrites = 2000;
  std::atomic<std::uint64_t> ended = 0;
  std::atomic<std::uint64_t> writers_left = kWriters;
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t i = 0; i < kWrites; ++i) {
        auto transaction = table.begin();
        const std::uint64_t key = writer * kWrites + i % 500;
        if (i % 5 == 4) {
          transaction.erase(key);
        } else {
          transaction.put(key, i);
        }
        const Commit commit = std::move(transaction).commit(clock());
        const auto count = [&](GateResult) { ++ended; };
        const auto ticket =
            i % 2 == 0
                ? reconciler.wait_for_revision(commit.epoch, commit.revision, clock() + 1h, count)
                : reconciler.wait_for_rows(std::span(&key, 1), std::nullopt, count);
        ASSERT_TRUE(ticket);
        if (std::holds_alternative<GateResult>(*ticket)) ++ended;
        (void)reconciler.progress();
      }
      --writers_left;
    });
  }
  while (writers_left > 0 || ended < kWriters * kWrites) {
    reconciler.step(clock());
  }
  for (std::thread& writer : writers) writer.join();
  while (reconciler.lowest_unreconciled() <= table.revision()) reconciler.step(clock());
  EXPECT_EQ(ended, kWriters * kWrites);
  EXPECT_EQ(target.held.size(), table.size());
  for (const auto& [key, value] : target.held) EXPECT_EQ(table.find(key), value);
}

}  // namespace
}  // namespace mapgate::reconciler
