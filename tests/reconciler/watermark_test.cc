// SPDX-License-Identifier: Apache-2.0
// "Is everything up to R realised?": the answer, and the ways in which it has gone wrong elsewhere.
#include "fixture.h"

namespace mapgate::reconciler {
namespace {

using WatermarkTest = ReconcilerTest;

TEST_F(WatermarkTest, IsTheNextRevisionWhenNothingIsUnreconciled) {
  EXPECT_EQ(reconciler.lowest_unreconciled(), 1U);
  EXPECT_EQ(put(1, "a"), 1U);
  EXPECT_EQ(reconciler.lowest_unreconciled(), 1U);
  settle();
  EXPECT_EQ(reconciler.lowest_unreconciled(), 2U);
}

// statedb: after the second failure its low watermark is the revision of the status write.
TEST_F(WatermarkTest, DoesNotDriftWhileARowKeepsFailing) {
  const Revision revision = put(1, "a");
  target.fail(1, transient());
  const Waiting& gate = wait_for_revision(revision);
  for (int i = 0; i < 22; ++i) {
    put(2, std::to_string(i));
    run_for(31s);
    ASSERT_EQ(reconciler.lowest_unreconciled(), revision);
  }
  EXPECT_GE(target.attempts(1), 22);
  EXPECT_FALSE(gate.result);
  target.heal(1);
  run_for(31s);
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
  EXPECT_EQ(reconciler.lowest_unreconciled(), table.revision() + 1);
}

// statedb: a failure while the object is being rewritten is forgotten with the old version.
TEST_F(WatermarkTest, RemembersAFailureOfARowThatWasRewrittenMeanwhile) {
  const Revision first = put(1, "a");
  target.fail(1, transient());
  target.during_apply = [&] { put(1, "b"); };
  reconciler.step(now);
  EXPECT_EQ(reconciler.lowest_unreconciled(), first);
  EXPECT_EQ(reconciler.status(1)->first_unreconciled, first);
  target.heal(1);
  run_for(1s);
  EXPECT_EQ(target.held[1], "b");
  EXPECT_EQ(reconciler.lowest_unreconciled(), table.revision() + 1);
}

// statedb: X at 1, 5000 others, X again in one transaction, rounds of 100: clean at 101 without X.
TEST_F(WatermarkTest, HoldsForASupersededRevisionWhileRoundsAreCut) {
  auto transaction = table.begin();
  transaction.put(0, "first");
  for (int i = 1; i <= 5000; ++i) transaction.put(i, "other");
  transaction.put(0, "second");
  std::move(transaction).commit(now);
  const Waiting& gate = wait_for_revision(1);
  target.fail(0, transient(), 1);
  const Budget rounds_of_100{.new_work = 100, .retries = 100};
  for (int i = 0; i < 20; ++i) reconciler.step(now, rounds_of_100);
  EXPECT_FALSE(target.held.contains(0));
  EXPECT_EQ(reconciler.lowest_unreconciled(), 1U);
  EXPECT_FALSE(gate.result);
  run_for(1s);
  EXPECT_EQ(target.held[0], "second");
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
}

// statedb: a status commit of B makes A's retry lose its compare-and-swap; A is never queued again.
TEST_F(WatermarkTest, OfTwoReconcilersDoesNotGetStuckWhenOneFailsFirst) {
  FakeTarget other_target;
  TestReconciler other{table, other_target, options};
  const Revision revision = put(1, "a");
  target.fail(1, transient(), 1);
  reconciler.step(now);
  other.step(now);
  EXPECT_EQ(reconciler.lowest_unreconciled(), revision);
  EXPECT_EQ(other.lowest_unreconciled(), revision + 1);
  run_for(1s);
  EXPECT_EQ(reconciler.lowest_unreconciled(), revision + 1);
  EXPECT_EQ(target.held[1], "a");
}

TEST_F(WatermarkTest, AChangeDuringTheAttemptIsWhereTheRowStandsAfterIt) {
  const Revision first = put(1, "a");
  Revision second = 0;
  target.during_apply = [&] {
    put(2, "other");
    second = put(1, "b");
    put(1, "c");
    put(3, "other");
  };
  reconciler.step(now);
  EXPECT_EQ(target.held[1], "a");
  EXPECT_EQ(reconciler.status(1)->first_unreconciled, second);
  EXPECT_EQ(reconciler.lowest_unreconciled(), first + 1);  // the row 2
  settle();
  EXPECT_EQ(target.held[1], "c");
  EXPECT_EQ(reconciler.lowest_unreconciled(), table.revision() + 1);
}

TEST_F(WatermarkTest, StaysWhenAnUnreconciledRowIsOverwrittenErasedAndInsertedAgain) {
  target.fail(1, transient());
  const Revision first = put(1, "a");
  settle();
  put(1, "b");
  erase(1);
  put(1, "c");
  put(2, "other");
  settle();
  EXPECT_EQ(reconciler.status(1)->first_unreconciled, first);
  EXPECT_EQ(reconciler.lowest_unreconciled(), first);
}

TEST_F(WatermarkTest, IsHeldByADeletionThatFails) {
  put(1, "a");
  settle();
  target.fail(1, transient());
  const Revision erased = erase(1);
  run_for(10s);
  EXPECT_EQ(reconciler.lowest_unreconciled(), erased);
  ASSERT_TRUE(reconciler.status(1));
  EXPECT_TRUE(reconciler.status(1)->erased);
  EXPECT_EQ(reconciler.status(1)->state, RowState::kError);
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.find(1), std::nullopt);
  target.heal(1);
  run_for(60s);
  EXPECT_EQ(reconciler.lowest_unreconciled(), erased + 1);
  EXPECT_FALSE(reconciler.status(1));
  EXPECT_EQ(table.size(), 0U);
  EXPECT_TRUE(target.held.empty());
}

TEST_F(WatermarkTest, PassesEverythingButTheRowThatFails) {
  target.fail(7, permanent());
  for (int i = 1; i <= 2000; ++i) put(i, "x");
  settle();
  EXPECT_EQ(reconciler.lowest_unreconciled(), 7U);
  EXPECT_EQ(target.held.size(), 1999U);
  EXPECT_EQ(reconciler.progress().errors, 1U);
  EXPECT_EQ(reconciler.progress().done, 1999U);
  EXPECT_EQ(put(7, "good"), 2001U);
  target.heal(7);
  settle();
  EXPECT_EQ(reconciler.lowest_unreconciled(), 2002U);
}

TEST_F(WatermarkTest, ARowThatIsRealisedAndUnchangedIsNotTouchedAgain) {
  put(1, "a");
  settle();
  EXPECT_EQ(put(1, "a"), 1U);
  EXPECT_EQ(table.revision(), 1U);
  run_for(3600s);
  EXPECT_EQ(target.attempts(1), 1);
}

TEST_F(WatermarkTest, ProgressTellsWhatIsOldestAndWhatWasNeverAttempted) {
  EXPECT_EQ(reconciler.progress().oldest_unreconciled, std::nullopt);
  EXPECT_EQ(reconciler.progress().lowest_never_attempted, 1U);
  const TimePoint first = now;
  target.fail(1, transient());
  put(1, "a");
  settle();
  now += 10ms;
  put(2, "b");
  put(1, "c");
  EXPECT_EQ(reconciler.progress().oldest_unreconciled, first);
  EXPECT_EQ(reconciler.progress().lowest_unreconciled, 1U);
  EXPECT_EQ(reconciler.progress().lowest_never_attempted, 2U);
  target.during_apply = [&] {
    put(2, "d");
    EXPECT_EQ(reconciler.progress().lowest_never_attempted, 4U);
  };
  settle();
  EXPECT_EQ(reconciler.progress().lowest_never_attempted, 5U);
  EXPECT_EQ(reconciler.progress().oldest_unreconciled, first);
  target.heal(1);
  run_for(1s);
  EXPECT_EQ(reconciler.progress().oldest_unreconciled, std::nullopt);
}

TEST_F(WatermarkTest, AChangeDuringASuccessfulAttemptIsAsOldAsItsCommit) {
  put(1, "a");
  now += 10ms;
  target.during_apply = [&] { put(1, "b"); };
  reconciler.step(now += 10ms);
  EXPECT_EQ(reconciler.progress().oldest_unreconciled, now);
  EXPECT_EQ(reconciler.status(1)->since, now);
}

TEST_F(WatermarkTest, TheFirstErrorsAreTold) {
  for (int i = 1; i <= 5; ++i) {
    target.fail(i, i == 3 ? permanent() : transient());
    put(i, "x");
    settle();
  }
  target.heal(1);
  run_for(1s);
  const auto errors = reconciler.first_errors(2);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].first, 2);
  EXPECT_EQ(errors[1].first, 3);
  EXPECT_EQ(errors[1].second.error->code, EINVAL);
}

}  // namespace
}  // namespace mapgate::reconciler
