// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

namespace mapgate::reconciler {
namespace {

class ResyncTest : public ReconcilerTest {
 protected:
  [[nodiscard]] ResyncStatus resync() const { return reconciler.progress().resync; }
  // Others changed 2, removed 3, and added 9; the target's log has what the resync does about it.
  void resync_a_damaged_target() {
    for (int i = 1; i <= 5; ++i) put(i, "right");
    settle();
    target.held[2] = "wrong";
    target.held.erase(3);
    target.held[9] = "unknown";
    target.log.clear();
    reconciler.request_resync();
    settle();
  }
};

TEST_F(ResyncTest, RepairsWhatIsWrongOrMissingAndRemovesWhatIsUnknown) {
  resync_a_damaged_target();
  EXPECT_EQ(target.held.size(), 5U);
  for (const auto& [key, value] : target.held) EXPECT_EQ(value, "right");
  EXPECT_EQ(target.log.size(), 3U) << "what is right is not touched";
  EXPECT_EQ(resync().completed, 1U);
  EXPECT_EQ(resync().repaired, 2U);
  EXPECT_EQ(resync().removed, 1U);
  EXPECT_EQ(table.size(), 5U);
}

TEST_F(ResyncTest, LeavesUnknownEntriesAloneWhereOthersWriteToo) {
  options.remove_unknown = false;
  TestReconciler other(table, target, options);
  put(1, "right");
  put(2, "right");
  settle(other);
  target.held[1] = "wrong";
  target.held[9] = "another's";
  for (int runs = 1; runs <= 2; ++runs) {
    other.request_resync();
    settle(other);
    EXPECT_EQ(target.held[1], "right");
    EXPECT_EQ(target.held[9], "another's");
    EXPECT_EQ(other.progress().resync.unknown, 1U) << "of the last run, not of all";
    EXPECT_EQ(other.progress().resync.removed, 0U);
  }
  erase(2);
  settle(other);
  EXPECT_FALSE(target.held.contains(2)) << "what was a row is removed";
}

TEST_F(ResyncTest, LowersTheWatermarkToTheRevisionThatIsNotThereAnyMore) {
  for (int i = 1; i <= 5; ++i) put(i, "right");
  settle();
  target.held.erase(3);
  target.fail(3, transient());
  reconciler.request_resync();
  settle();
  EXPECT_EQ(reconciler.lowest_unreconciled(), 3U);
  put(3, "new");
  EXPECT_EQ(reconciler.lowest_unreconciled(), 3U);
  target.heal(3);
  run_for(1s);
  EXPECT_EQ(target.held[3], "new");
  EXPECT_EQ(reconciler.lowest_unreconciled(), 7U);
}

TEST_F(ResyncTest, AChangeDuringARepairIsDoneAfterIt) {
  put(1, "a");
  settle();
  target.held.erase(1);
  reconciler.request_resync();
  while (reconciler.progress().pending == 0) reconciler.step(now);
  target.during_apply = [&] { put(1, "b"); };
  settle();
  EXPECT_EQ(target.held[1], "b");
  EXPECT_EQ(reconciler.lowest_unreconciled(), 3U);
}

TEST_F(ResyncTest, AtStartAdoptsWithoutAWrite) {
  FakeTarget kept;
  for (int i = 0; i < 5000; ++i) kept.held[i] = "right";
  kept.held[7] = "wrong";
  kept.held[9999] = "unknown";
  Options at_start = options;
  at_start.start_with_resync = true;
  TestTable fresh{Epoch::from_random(5, 6)};
  const SourceId spec = fresh.add_source("spec");
  const SourceId state = fresh.add_source("state");
  TestReconciler restarted{fresh, kept, at_start};
  auto transaction = fresh.begin();
  for (int i = 0; i < 5000; ++i) transaction.put(i, "right");
  transaction.put(5001, "new");
  const Commit commit = std::move(transaction).commit(now);
  fresh.source_complete(spec);
  settle(restarted);
  EXPECT_TRUE(kept.log.empty()) << "a source is not complete";
  EXPECT_EQ(fresh.incomplete_sources(), std::vector<std::string>{"state"});

  fresh.source_complete(state);
  settle(restarted);
  EXPECT_EQ(kept.log.size(), 3U);
  EXPECT_EQ(kept.held[7], "right");
  EXPECT_TRUE(kept.held.contains(5001));
  EXPECT_FALSE(kept.held.contains(9999));
  EXPECT_EQ(restarted.progress().resync.adopted, 4999U);
  EXPECT_EQ(restarted.lowest_unreconciled(), commit.revision + 2)
      << "the deletion has a revision, too";
}

TEST_F(ResyncTest, AtStartDoesNotHoldRowsThatSomebodyWaitsFor) {
  Options at_start = options;
  at_start.start_with_resync = true;
  TestTable fresh{Epoch::from_random(5, 6)};
  const SourceId source = fresh.add_source("never complete");
  TestReconciler restarted{fresh, target, at_start};
  auto transaction = fresh.begin();
  transaction.put(1, "bulk");
  transaction.put(2, "urgent");
  std::move(transaction).commit(now);
  const std::vector<int> keys{2};
  bool opened = false;
  ASSERT_TRUE(restarted.wait_for_rows(keys, {}, [&](GateResult) { opened = true; }));
  settle(restarted);
  EXPECT_TRUE(opened);
  EXPECT_EQ(target.log.size(), 1U);
  fresh.remove_source(source);
  settle(restarted);
  EXPECT_TRUE(target.held.contains(1));
}

// Such a row leaves the queue of new work from its middle, which is tidied up now and then.
TEST_F(ResyncTest, AtStartRowsThatSomebodyWaitsForMayChangeAnyNumberOfTimes) {
  Options at_start = options;
  at_start.start_with_resync = true;
  TestTable fresh{Epoch::from_random(5, 6)};
  const SourceId source = fresh.add_source("slow");
  TestReconciler restarted{fresh, target, at_start};
  const auto write = [&](int key, const std::string& value) {
    auto transaction = fresh.begin();
    transaction.put(key, value);
    std::move(transaction).commit(now);
  };
  write(1, "bulk");
  const std::vector<int> keys{2};
  for (int i = 0; i < 5000; ++i) {
    write(2, std::to_string(i));
    ASSERT_TRUE(restarted.wait_for_rows(keys, {}, {}));
    restarted.step(now);
  }
  EXPECT_EQ(target.attempts(2), 5000);
  EXPECT_EQ(restarted.progress().lowest_never_attempted, 1U);
  fresh.source_complete(source);
  settle(restarted);
  EXPECT_EQ(target.held, (std::map<int, std::string>{{1, "bulk"}, {2, "4999"}}));
  EXPECT_EQ(target.attempts(1), 1);
}

TEST_F(ResyncTest, OpensGatesOfRowsThatItAdopts) {
  target.fail(1, transient());
  put(1, "a");
  const Waiting& gate = wait_for_rows({1});
  const Waiting& revision = wait_for_revision(1);
  settle();
  target.held[1] = "a";  // somebody else did it
  reconciler.request_resync();
  settle();
  EXPECT_EQ(outcome(gate), GateOutcome::kOpened);
  EXPECT_EQ(outcome(revision), GateOutcome::kOpened);
  EXPECT_EQ(resync().adopted, 1U);
}

TEST_F(ResyncTest, AdoptsRowsInEveryState) {
  target.capacity = 0;
  target.fail(1, transient());
  target.fail(2, permanent());
  put(1, "a");
  put(2, "b");
  put(3, "c");  // parked
  settle();
  target.held = {{1, "a"}, {2, "b"}, {3, "c"}};
  reconciler.request_resync();
  settle();
  const Progress progress = reconciler.progress();
  EXPECT_EQ(progress.done, 3U);
  EXPECT_EQ(progress.errors, 0U);
  EXPECT_EQ(progress.parked, 0U);
  EXPECT_EQ(progress.lowest_unreconciled, 4U);
  run_for(3600s);
  EXPECT_EQ(target.attempts(2), 1);
}

TEST_F(ResyncTest, AFailureStaysVisibleAndIsRetriedUntilItSucceeds) {
  put(1, "a");
  settle();
  target.held.erase(1);
  target.scan_error = transient();
  reconciler.request_resync();
  run_for(10s);
  EXPECT_GE(resync().failed, 2U);
  ASSERT_TRUE(resync().error);
  EXPECT_EQ(resync().error->code, EBUSY);
  target.scan_error.reset();
  run_for(30s);
  EXPECT_FALSE(resync().error);
  EXPECT_EQ(resync().completed, 1U);
  EXPECT_TRUE(target.held.contains(1));
}

TEST_F(ResyncTest, RunsOnceForAnEmptyTableThatBecomesComplete) {
  const SourceId source = table.add_source("spec");
  target.held = {{9, "unknown"}};
  reconciler.request_resync();
  run_for(60s);
  EXPECT_TRUE(target.held.contains(9));
  table.source_complete(source);
  run_for(60s);
  EXPECT_TRUE(target.held.empty());
  EXPECT_EQ(resync().completed, 1U);
}

TEST_F(ResyncTest, RunsAgainAfterItsInterval) {
  Options every_minute = options;
  every_minute.start_with_resync = true;
  every_minute.resync_interval = 60s;
  TestReconciler other{table, target, every_minute};
  settle(other);
  EXPECT_EQ(other.step(now).next, now + 60s);
  put(1, "a");
  settle(other);
  target.held.clear();
  now += 60s;
  settle(other);
  EXPECT_TRUE(target.held.contains(1));
  EXPECT_EQ(other.progress().resync.completed, 2U);
}

TEST_F(ResyncTest, WorksInSlicesBetweenWhichRowsAreWritten) {
  Options slices = options;
  slices.resync_slice = 10;
  TestReconciler other{table, target, slices};
  for (int i = 0; i < 100; ++i) put(i, "x");
  settle(other);
  target.log.clear();
  other.request_resync();
  for (int i = 0; i < 5; ++i) other.step(now);
  EXPECT_TRUE(other.progress().resync.running);
  put(5, "y");
  put(200, "z");
  other.step(now);
  EXPECT_EQ(target.held[200], "z");
  settle(other);
  EXPECT_EQ(target.log.size(), 2U);
}

TEST_F(ResyncTest, ALostTargetIsComparedAsAWhole) {
  for (int i = 1; i <= 3; ++i) put(i, "x");
  settle();
  target.held.clear();
  target.fail(4, {ErrorClass::kTargetLost, EBADF, "gone"}, 1);
  put(4, "x");
  run_for(1s);
  EXPECT_EQ(target.held.size(), 4U);
  EXPECT_EQ(resync().repaired, 3U);
}

TEST_F(ResyncTest, OperationsSayWhetherTheTargetHoldsTheirKey) {
  const auto held_by_last = [&] { return target.log.back().held; };
  put(1, "a");
  settle();
  EXPECT_FALSE(held_by_last());
  put(1, "b");
  settle();
  EXPECT_TRUE(held_by_last());
  erase(1);
  settle();
  EXPECT_TRUE(held_by_last());
  put(1, "c");
  settle();
  EXPECT_FALSE(held_by_last());
  target.fail(2, transient(), 1);
  put(2, "a");
  run_for(1s);
  ASSERT_EQ(target.attempts(2), 2);
  EXPECT_FALSE(held_by_last());
}

TEST_F(ResyncTest, WhetherTheTargetHoldsAKeyIsLearnedFromTheScan) {
  resync_a_damaged_target();
  ASSERT_EQ(target.log.size(), 3U);
  for (const auto& op : target.log) EXPECT_EQ(op.held, op.key != 3) << op.key;
}

// As an array's zeros.
TEST_F(ResyncTest, AnEntryThatStandsForNothingIsRightWhereNothingIsWanted) {
  target.absence = "0";
  for (int i = 1; i <= 4; ++i) target.held[i] = "0";
  put(1, "0");
  put(2, "a");
  put(3, "a");
  settle();
  erase(3);
  settle();
  target.held[2] = target.held[3] = "0";
  target.log.clear();
  reconciler.request_resync();
  settle();
  ASSERT_EQ(target.log.size(), 1U);
  EXPECT_EQ(target.held[2], "a");
  EXPECT_EQ(resync().repaired, 1U);
  EXPECT_EQ(resync().removed, 0U);
  EXPECT_EQ(table.size(), 2U);
}

TEST_F(ResyncTest, ABatchIsNoLargerThanTheTargetAllows) {
  target.limit = 7;
  for (int i = 1; i <= 100; ++i) put(i, "a");
  settle();
  EXPECT_EQ(target.held.size(), 100U);
  for (const std::size_t size : target.rounds) EXPECT_LE(size, 7U);
}

}  // namespace
}  // namespace mapgate::reconciler
