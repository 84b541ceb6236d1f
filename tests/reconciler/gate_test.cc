// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

namespace mapgate::reconciler {
namespace {

using GateTest = ReconcilerTest;

TEST_F(GateTest, RevisionZeroNeverBlocks) {
  put(1, "a");
  EXPECT_EQ(outcome(wait_for_revision(0)), GateOutcome::kOpened);
}

TEST_F(GateTest, OpensOnceTheWatermarkPassesItsRevision) {
  const Waiting& first = wait_for_revision(put(1, "a"));
  const Waiting& second = wait_for_revision(put(2, "b"));
  reconciler.step(now, {.new_work = 1, .retries = 1});
  EXPECT_EQ(outcome(first), GateOutcome::kOpened);
  EXPECT_FALSE(second.result);
  settle();
  EXPECT_EQ(outcome(second), GateOutcome::kOpened);
  EXPECT_EQ(second.calls, 1);
  EXPECT_EQ(reconciler.progress().open_gates, 0U);
}

TEST_F(GateTest, AtOnceIfItHoldsAlready) {
  const Revision revision = put(1, "a");
  settle();
  const Waiting& by_revision = wait_for_revision(revision);
  const Waiting& by_row = wait_for_rows({1});
  EXPECT_EQ(outcome(by_revision), GateOutcome::kOpened);
  EXPECT_EQ(outcome(by_row), GateOutcome::kOpened);
  EXPECT_EQ(by_row.calls, 0);
}

TEST_F(GateTest, ARowGateDoesNotWaitForUnrelatedRows) {
  target.fail(1, transient());
  put(1, "stuck");
  put(2, "mine");
  const Waiting& gate = wait_for_rows({2});
  settle();
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
}

TEST_F(GateTest, ARowGateWaitsForEveryRowItNames) {
  target.fail(2, transient(), 1);
  put(1, "a");
  put(2, "b");
  const Waiting& gate = wait_for_rows({1, 2, 2});
  settle();
  EXPECT_FALSE(gate.result);
  run_for(1s);
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
  EXPECT_EQ(gate.calls, 1);
}

TEST_F(GateTest, AWriteThatChangedNothingStillWaitsForTheRow) {
  put(1, "a");
  put(1, "a");
  const Waiting& gate = wait_for_rows({1});
  EXPECT_FALSE(gate.result);
  settle();
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
}

TEST_F(GateTest, ALaterStateOfTheRowIsGoodEnough) {
  put(1, "a");
  const Waiting& gate = wait_for_rows({1});
  put(1, "b");
  settle();
  EXPECT_EQ(target.attempts(1), 1);
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
}

TEST_F(GateTest, AnEarlierStateOfTheRowIsNot) {
  put(1, "a");
  const Waiting* late = nullptr;
  std::optional<bool> open_at_next_attempt;
  target.during_apply = [&] {
    put(1, "b");
    late = &wait_for_rows({1});
    target.during_apply = [&] { open_at_next_attempt = late->result.has_value(); };
  };
  const Waiting& early = wait_for_rows({1});
  reconciler.step(now);
  EXPECT_EQ(outcome(early), GateOutcome::kOpened);
  ASSERT_TRUE(late);
  settle();
  EXPECT_EQ(open_at_next_attempt, false);
  EXPECT_EQ(outcome(*late), GateOutcome::kOpened);
}

TEST_F(GateTest, RowsSomebodyWaitsForGoFirst) {
  for (int i = 0; i < 5000; ++i) put(i, "bulk");
  put(9999, "urgent");
  const Waiting& gate = wait_for_rows({9999});
  reconciler.step(now, {.new_work = 10, .retries = 1});
  EXPECT_EQ(target.log.front().key, 9999);
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
}

TEST_F(GateTest, WhoWaitsForARowDoesNotWaitForTheBulkOfTheSameStep) {
  for (int i = 0; i < 100; ++i) put(i, "bulk");
  put(9999, "urgent");
  const Waiting& gate = wait_for_rows({9999});
  bool opened_before_bulk = false;
  target.during_apply = [&] {  // the first batch is the urgent row's
    target.during_apply = [&] { opened_before_bulk = gate.result.has_value(); };
  };
  reconciler.step(now);
  EXPECT_TRUE(opened_before_bulk);
  EXPECT_EQ(target.rounds, (std::vector<std::size_t>{1, 100}));
}

TEST_F(GateTest, RowsSomebodyWaitsForDoNotStarveTheOthers) {
  for (int i = 0; i < 100; ++i) put(i, "bulk");
  for (int i = 1000; i < 1100; ++i) {
    put(i, "urgent");
    wait_for_rows({i});
  }
  const StepResult step = reconciler.step(now, {.new_work = 10, .retries = 1});
  EXPECT_EQ(step.operations, 20U);
  EXPECT_TRUE(target.held.contains(9));
}

TEST_F(GateTest, ARowThatChangedDuringItsAttemptAndIsWaitedForGoesFirstToo) {
  for (int i = 0; i < 100; ++i) put(i, "bulk");
  const Waiting* gate = nullptr;
  target.during_apply = [&] {
    put(0, "urgent");
    gate = &wait_for_rows({0});
  };
  reconciler.step(now, {.new_work = 1, .retries = 1});
  reconciler.step(now, {.new_work = 1, .retries = 1});
  ASSERT_TRUE(gate);
  EXPECT_EQ(outcome(*gate), GateOutcome::kOpened);
  EXPECT_EQ(target.log[1].key, 0);
}

TEST_F(GateTest, IsWithdrawnWhenANamedRowIsErased) {
  put(1, "a");
  put(2, "b");
  const Waiting& gate = wait_for_rows({1, 2});
  erase(2);
  reconciler.step(now);
  EXPECT_EQ(outcome(gate), GateOutcome::kWithdrawn);
  EXPECT_EQ(gate.calls, 1);
}

TEST_F(GateTest, OnAnErasedRowWaitsForTheDeletion) {
  put(1, "a");
  settle();
  target.fail(1, transient(), 1);
  erase(1);
  const Waiting& gate = wait_for_rows({1});
  settle();
  EXPECT_FALSE(gate.result);
  run_for(1s);
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
  EXPECT_EQ(outcome(wait_for_rows({1})), GateOutcome::kOpened);
}

TEST_F(GateTest, FailsWhenARowFailsPermanentlyWithItsError) {
  target.fail(1, permanent());
  put(1, "a");
  const Waiting& row = wait_for_rows({1});
  const Waiting& revision = wait_for_revision(1);
  settle();
  EXPECT_EQ(outcome(row), GateOutcome::kFailed);
  EXPECT_EQ(outcome(revision), GateOutcome::kFailed);
  ASSERT_TRUE(row.result->error);
  EXPECT_EQ(row.result->error->code, EINVAL);
  EXPECT_EQ(outcome(wait_for_rows({1})), GateOutcome::kFailed);
  EXPECT_EQ(outcome(wait_for_revision(1)), GateOutcome::kFailed);
}

TEST_F(GateTest, ForAnEarlierRevisionDoesNotFailWithALaterRow) {
  target.fail(1, transient(), 1);
  target.fail(2, permanent());
  put(1, "a");
  put(2, "b");
  const Waiting& first = wait_for_revision(1);
  const Waiting& second = wait_for_revision(2);
  settle();
  EXPECT_FALSE(first.result);
  EXPECT_EQ(outcome(second), GateOutcome::kFailed);
  run_for(1s);
  EXPECT_EQ(outcome(first), GateOutcome::kOpened);
}

TEST_F(GateTest, TimesOutAtItsDeadline) {
  target.fail(1, transient());
  put(1, "a");
  const Waiting& gate = wait_for_rows({1}, now + 1s);
  run_for(999ms);
  EXPECT_FALSE(gate.result);
  run_for(1ms);
  EXPECT_EQ(outcome(gate), GateOutcome::kTimedOut);
  target.heal(1);
  run_for(60s);
  EXPECT_EQ(gate.calls, 1);
}

TEST_F(GateTest, TheDriverIsToldOfTheDeadline) {
  target.fail(1, transient());
  put(1, "a");
  settle();
  settle();
  int wakeups = 0;
  reconciler.set_wakeup([&] { ++wakeups; });
  wait_for_rows({1}, now + 1ms);
  EXPECT_EQ(wakeups, 1);
  EXPECT_EQ(reconciler.step(now).next, now + 1ms);
}

TEST_F(GateTest, CanBeCancelledOnce) {
  put(1, "a");
  const Waiting& gate = wait_for_rows({1}, now + 1s);
  EXPECT_TRUE(reconciler.cancel(gate.id));
  EXPECT_FALSE(reconciler.cancel(gate.id));
  EXPECT_FALSE(gate.result) << "callbacks run from the driver";
  settle();
  EXPECT_EQ(outcome(gate), GateOutcome::kCancelled);
  wait_for_rows({1});
  EXPECT_FALSE(reconciler.cancel(gate.id)) << "a name is not reused";
}

TEST_F(GateTest, EveryOneEndsAtShutdown) {
  put(1, "a");
  const Waiting& row = wait_for_rows({1});
  const Waiting& revision = wait_for_revision(1);
  target.fail(1, transient());
  settle();
  reconciler.shut_down();
  settle();
  EXPECT_EQ(outcome(row), GateOutcome::kShuttingDown);
  EXPECT_EQ(outcome(revision), GateOutcome::kShuttingDown);
  EXPECT_EQ(outcome(wait_for_rows({1})), GateOutcome::kShuttingDown);
  EXPECT_EQ(outcome(wait_for_revision(0)), GateOutcome::kOpened);
}

TEST_F(GateTest, EveryOneEndsWhenTheReconcilerIsDestroyed) {
  std::optional<GateResult> result;
  {
    TestReconciler other{table, target, options};
    put(1, "a");
    ASSERT_TRUE(other.wait_for_revision(table.epoch(), 1, {}, [&](GateResult r) { result = r; }));
  }
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, GateOutcome::kShuttingDown);
}

TEST_F(GateTest, MayUseTableAndReconcilerInItsCallback) {
  put(1, "a");
  bool opened = false;
  const auto ticket = reconciler.wait_for_revision(table.epoch(), 1, {}, [&](GateResult) {
    put(2, "b");
    opened =
        std::holds_alternative<GateId>(*reconciler.wait_for_revision(table.epoch(), 2, {}, {}));
  });
  ASSERT_TRUE(ticket);
  settle();
  EXPECT_TRUE(opened);
  EXPECT_TRUE(target.held.contains(2));
}

TEST_F(GateTest, OnARevisionOfAnotherEpochOrOfTheFutureIsRefused) {
  put(1, "a");
  const auto other = reconciler.wait_for_revision(Epoch::from_random(3, 4), 1, {}, {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error(), GateRefusal::kOtherEpoch);
  const auto future = reconciler.wait_for_revision(table.epoch(), 2, {}, {});
  ASSERT_FALSE(future);
  EXPECT_EQ(future.error(), GateRefusal::kFutureRevision);
}

TEST_F(GateTest, NoMoreThanTheMaximumAreOpen) {
  Options few = options;
  few.max_gates = 2;
  TestReconciler other{table, target, few};
  put(1, "a");
  EXPECT_TRUE(other.wait_for_revision(table.epoch(), 1, {}, {}));
  const std::vector<int> keys{1};
  EXPECT_TRUE(other.wait_for_rows(keys, {}, {}));
  const auto third = other.wait_for_rows(keys, {}, {});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error(), GateRefusal::kTooMany);
}

TEST_F(GateTest, ManyMixedOnesEndEachOnce) {
  std::vector<Waiting*> gates;
  for (int i = 0; i < 300; ++i) {
    if (i % 7 == 3) target.fail(i, transient());
    if (i % 11 == 5) target.fail(i, permanent());
    put(i, "x");
    gates.push_back(&wait_for_rows({i, i / 2}, now + std::chrono::milliseconds(i)));
    gates.push_back(&wait_for_revision(table.revision(), now + std::chrono::milliseconds(i)));
  }
  for (std::size_t i = 0; i < gates.size(); i += 13) reconciler.cancel(gates[i]->id);
  run_for(1s);
  for (const Waiting* gate : gates) {
    EXPECT_TRUE(gate->result);
    EXPECT_LE(gate->calls, 1);
  }
  EXPECT_EQ(reconciler.progress().open_gates, 0U);
}

}  // namespace
}  // namespace mapgate::reconciler
