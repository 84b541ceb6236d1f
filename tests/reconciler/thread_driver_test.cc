// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/thread_driver.h>

#include <chrono>
#include <future>

#include "fixture.h"

namespace mapgate::reconciler {
namespace {

class ThreadDriverTest : public testing::Test {
 protected:
  Commit put(int key, std::string value) {
    auto transaction = table.begin();
    transaction.put(key, std::move(value));
    return std::move(transaction).commit(std::chrono::steady_clock::now());
  }
  GateOutcome wait(const Commit& commit, Duration timeout) {
    std::promise<GateOutcome> outcome;
    const auto ticket = reconciler.wait_for_revision(
        commit.epoch, commit.revision, std::chrono::steady_clock::now() + timeout,
        [&](const GateResult& result) { outcome.set_value(result.outcome); });
    if (const auto* at_once = std::get_if<GateResult>(&ticket.value())) return at_once->outcome;
    return outcome.get_future().get();
  }

  TestTable table{Epoch::from_random(1, 2)};
  FakeTarget target;
  TestReconciler reconciler{table, target, Options{.retry = {1ms, 2ms}}};
};

TEST_F(ThreadDriverTest, WakesForACommitAfterItHasSlept) {
  const ThreadDriver driver(reconciler);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(wait(put(i, "x"), 1h), GateOutcome::kOpened);
}

TEST_F(ThreadDriverTest, WakesByItselfForRetriesAndDeadlines) {
  target.fail(1, transient(), 5);
  target.fail(2, permanent());
  const ThreadDriver driver(reconciler);
  EXPECT_EQ(wait(put(1, "x"), 1h), GateOutcome::kOpened);
  EXPECT_EQ(wait(put(2, "x"), 1h), GateOutcome::kFailed);
  target.fail(3, transient());
  const Commit stuck = put(3, "x");
  const std::vector<int> keys{3};
  std::promise<GateOutcome> outcome;
  const auto ticket = reconciler.wait_for_rows(
      keys, std::chrono::steady_clock::now() + 5ms,
      [&](const GateResult& result) { outcome.set_value(result.outcome); });
  ASSERT_TRUE(ticket);
  EXPECT_EQ(outcome.get_future().get(), GateOutcome::kTimedOut);
  EXPECT_GT(stuck.revision, 0U);
}

TEST_F(ThreadDriverTest, StopsWhileItSleepsAndLeavesGatesToTheReconciler) {
  int ended = 0;
  {
    TestReconciler other{table, target, Options{.retry = {1h, 1h}}};
    target.fail(1, transient());
    const Commit commit = put(1, "x");
    {
      const ThreadDriver driver(other);
      ASSERT_TRUE(other.wait_for_revision(commit.epoch, commit.revision, std::nullopt,
                                          [&](const GateResult&) { ++ended; }));
    }
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace mapgate::reconciler
