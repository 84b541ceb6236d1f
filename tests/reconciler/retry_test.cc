// SPDX-License-Identifier: Apache-2.0
// Retries, error classes, budgets, parking.
#include "fixture.h"

namespace mapgate::reconciler {
namespace {

class RetryTest : public ReconcilerTest {
 protected:
  // Row 1 fails once in target 0, which nothing but a change of that target ends.
  void expect_row_1_waits_for_target_0_to_change() {
    reconciler.target_changed(1);  // another one
    settle();
    EXPECT_EQ(target.attempts(1), 1);
    reconciler.target_changed(0);
    settle();
    EXPECT_EQ(target.held[1], "a");
  }

  // When each attempt at `key` is made, in the time until `duration` from now.
  std::vector<Duration> attempt_times(int key, Duration duration) {
    std::vector<Duration> times;
    const TimePoint start = now;
    for (;;) {
      const int before = target.attempts(key);
      const StepResult step = reconciler.step(now);
      if (target.attempts(key) > before) times.push_back(now - start);
      if (step.more) continue;
      if (!step.next || *step.next > start + duration) return times;
      now = *step.next;
    }
  }
};

TEST_F(RetryTest, ATransientFailureDoublesTheDelayUpToTheMaximum) {
  put(1, "a");
  target.fail(1, transient());
  const auto times = attempt_times(1, 200s);
  ASSERT_GE(times.size(), 12U);
  EXPECT_EQ(times[0], 0ms);
  EXPECT_EQ(times[1], 50ms);
  EXPECT_EQ(times[2], 150ms);
  EXPECT_EQ(times[3], 350ms);
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_LE(times[i] - times[i - 1], 30s);
  EXPECT_EQ(times.back() - times[times.size() - 2], 30s);
}

TEST_F(RetryTest, JitterStaysWithinTheBounds) {
  Options jittery;
  jittery.jitter = 1;
  jittery.seed = 42;
  FakeTarget other_target;
  TestReconciler other{table, other_target, jittery};
  other_target.fail(1, transient());
  put(1, "a");
  TimePoint last = now;
  bool any_drawn = false;
  for (int i = 0; i < 40; ++i) {
    while (other.step(now).more) {
    }
    const auto next = other.step(now).next;
    ASSERT_TRUE(next);
    EXPECT_GE(*next - last, 50ms);
    EXPECT_LE(*next - last, 30s);
    any_drawn |= *next - last > 50ms && *next - last < 30s && (*next - last) % 50ms != 0ms;
    last = now = *next;
  }
  EXPECT_TRUE(any_drawn);
}

TEST_F(RetryTest, RetriesRunInTheOrderOfTheirTimes) {
  target.fail(1, transient(), 2);
  target.fail(2, transient(), 1);
  put(1, "a");
  put(2, "b");
  settle();
  now += 50ms;
  settle();
  EXPECT_EQ(target.held, (std::map<int, std::string>{{2, "b"}}));
  now += 99ms;
  settle();
  EXPECT_FALSE(target.held.contains(1));
  now += 1ms;
  settle();
  EXPECT_TRUE(target.held.contains(1));
}

TEST_F(RetryTest, TheStatusTellsTheError) {
  target.fail(1, transient());
  put(1, "a");
  EXPECT_EQ(reconciler.status(1)->state, RowState::kPending);
  EXPECT_EQ(reconciler.status(1)->since, now);
  now += 1ms;
  settle();
  const RowStatus status = *reconciler.status(1);
  EXPECT_EQ(status.state, RowState::kError);
  EXPECT_EQ(status.since, now);
  ASSERT_TRUE(status.error);
  EXPECT_EQ(status.error->error_class, ErrorClass::kTransient);
  EXPECT_EQ(status.error->code, EBUSY);
  EXPECT_EQ(status.error->text, "busy");
  EXPECT_EQ(status.error->attempts, 1U);
  EXPECT_EQ(status.error->next_retry, now + 50ms);
  now += 50ms;
  settle();
  EXPECT_EQ(reconciler.status(1)->error->attempts, 2U);
  EXPECT_EQ(reconciler.status(1)->since, status.since);
  target.heal(1);
  run_for(1s);
  EXPECT_EQ(reconciler.status(1)->state, RowState::kDone);
  EXPECT_FALSE(reconciler.status(1)->error);
}

TEST_F(RetryTest, ARewriteDoesNotForgetTheCountOfFailures) {
  target.fail(1, transient());
  put(1, "a");
  settle();
  now += 50ms;
  settle();
  put(1, "b");
  EXPECT_EQ(reconciler.status(1)->state, RowState::kPending);
  EXPECT_EQ(reconciler.status(1)->error->attempts, 2U);
  now += 100ms;
  settle();
  EXPECT_EQ(reconciler.status(1)->error->attempts, 3U);
  EXPECT_EQ(reconciler.status(1)->error->next_retry, now + 200ms);
}

TEST_F(RetryTest, APermanentFailureWaitsForAChangeOfTheRow) {
  target.fail(1, permanent());
  put(1, "a");
  run_for(3600s);
  EXPECT_EQ(target.attempts(1), 1);
  EXPECT_EQ(reconciler.status(1)->error->next_retry, std::nullopt);
  put(1, "b");
  settle();
  EXPECT_EQ(target.attempts(1), 2);
  target.heal(1);
  erase(1);
  settle();
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(RetryTest, APermanentFailureWaitsForAChangeOfTheTarget) {
  target.fail(1, permanent(), 1);
  put(1, "a");
  run_for(3600s);
  expect_row_1_waits_for_target_0_to_change();
}

TEST_F(RetryTest, ARowWithoutRoomIsTriedAtOnceWhenTheTargetChanges) {
  target.fail(1, full(), 1);
  put(1, "a");
  settle();
  EXPECT_EQ(reconciler.progress().parked, 1U);
  expect_row_1_waits_for_target_0_to_change();
  EXPECT_EQ(reconciler.progress().parked, 0U);
}

TEST_F(RetryTest, APermanentFailureOfAnOldStateIsNotHeldAgainstTheNewOne) {
  target.fail(1, permanent(), 1);
  put(1, "a");
  target.during_apply = [&] { put(1, "b"); };
  settle();
  EXPECT_EQ(target.held[1], "b");
}

TEST_F(RetryTest, RowsOfAFullTargetAreParkedAndWokenByDeletes) {
  target.capacity = 2;
  for (int i = 1; i <= 5; ++i) put(i, "x");
  settle();
  EXPECT_EQ(reconciler.progress().parked, 3U);
  const auto attempts = target.log.size();
  now += 500ms;
  settle();
  EXPECT_EQ(target.log.size(), attempts) << "a parked row is not hammered";
  erase(1);
  settle();
  EXPECT_EQ(target.held, (std::map<int, std::string>{{2, "x"}, {3, "x"}}));
  EXPECT_EQ(reconciler.progress().parked, 2U);
  erase(4);  // parked, never written: its deletion frees nothing
  settle();
  EXPECT_EQ(target.held.size(), 2U);
  EXPECT_EQ(reconciler.progress().parked, 1U);
  EXPECT_EQ(table.size(), 3U);
}

TEST_F(RetryTest, ParkedRowsTryNowAndThenForRoomMadeByOthers) {
  target.capacity = 1;
  put(1, "x");
  put(2, "y");
  settle();
  target.capacity = 2;
  now += 1s;
  settle();
  EXPECT_TRUE(target.held.contains(2));
}

TEST_F(RetryTest, NewWorkAndRetriesDoNotStarveEachOther) {
  const Budget budget{.new_work = 10, .retries = 10};
  for (int i = 0; i < 1000; ++i) {
    target.fail(i, transient());
    put(i, "x");
  }
  settle();
  for (int i = 1000; i < 2000; ++i) put(i, "x");
  now += 30s;  // all retries are due
  const StepResult step = reconciler.step(now, budget);
  EXPECT_EQ(step.operations, 20U);
  EXPECT_TRUE(step.more);
  EXPECT_EQ(target.held.size(), 10U);
}

TEST_F(RetryTest, ABatchMixesRetriesAndNewWorkInOrderOfRevision) {
  target.fail(1, transient(), 1);
  put(1, "a");
  settle();
  put(2, "b");
  now += 50ms;
  settle();
  EXPECT_EQ(target.rounds.back(), 2U);
  EXPECT_EQ(target.log.back().key, 2);
}

TEST_F(RetryTest, OfAPartialBatchOnlyWhatFailedIsDoneAgain) {
  target.fail(2, transient(), 1);
  target.fail(4, transient(), 1);
  for (int i = 1; i <= 5; ++i) put(i, "x");
  run_for(1s);
  EXPECT_EQ(target.held.size(), 5U);
  EXPECT_EQ(target.log.size(), 7U);
}

TEST_F(RetryTest, AFailingDeletionIsRetriedAndHealed) {
  put(1, "a");
  settle();
  target.fail(1, transient(), 4);
  erase(1);
  EXPECT_EQ(reconciler.status(1)->state, RowState::kPending);
  settle();
  EXPECT_EQ(reconciler.status(1)->state, RowState::kError);
  run_for(10s);
  EXPECT_TRUE(target.held.empty());
  EXPECT_EQ(reconciler.progress().errors, 0U);
}

TEST(OptionsTest, ThatMakeNoSenseAreRefused) {
  TestTable table{Epoch{}};
  FakeTarget target;
  Options options;
  EXPECT_EQ(options.problem(), nullptr);
  options.retry.max = 1ms;
  EXPECT_THROW((TestReconciler{table, target, options}), std::invalid_argument);
  options = {};
  options.jitter = 1.5;
  EXPECT_NE(options.problem(), nullptr);
  options = {};
  options.max_gates = 0;
  EXPECT_NE(options.problem(), nullptr);
}

}  // namespace
}  // namespace mapgate::reconciler
