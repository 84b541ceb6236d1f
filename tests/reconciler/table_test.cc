// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

namespace mapgate::reconciler {
namespace {

using TableTest = ReconcilerTest;

TEST_F(TableTest, EveryChangeTakesTheNextRevision) {
  auto transaction = table.begin();
  transaction.put(1, "a");
  transaction.put(2, "b");
  transaction.erase(1);
  transaction.erase(3);  // no row: no change
  const Commit commit = std::move(transaction).commit(now);
  EXPECT_EQ(commit.epoch, table.epoch());
  EXPECT_EQ(commit.revision, 3U);
  EXPECT_EQ(commit.changed, 3U);
  EXPECT_EQ(table.revision(), 3U);
}

TEST_F(TableTest, AnAbortedTransactionLeavesNothing) {
  {
    auto transaction = table.begin();
    transaction.put(1, "a");
  }
  EXPECT_EQ(table.revision(), 0U);
  EXPECT_EQ(table.size(), 0U);
  EXPECT_FALSE(reconciler.step(now).more);
  EXPECT_TRUE(target.log.empty());
}

TEST_F(TableTest, ACommitThatChangesNothingNamesTheRevisionToWaitFor) {
  put(1, "a");
  put(2, "b");
  auto transaction = table.begin();
  transaction.put(1, "a");
  const Commit commit = std::move(transaction).commit(now);
  EXPECT_EQ(commit.changed, 0U);
  EXPECT_EQ(commit.revision, 1U);
}

TEST_F(TableTest, AnErasedRowCanComeBackBeforeTheDeletionWasAttempted) {
  put(1, "a");
  settle();
  erase(1);
  put(1, "b");
  settle();
  EXPECT_EQ(target.held[1], "b");
  EXPECT_EQ(target.attempts(1), 2);
}

TEST_F(TableTest, NumbersOfErasedRowsAreUsedAgainWithoutTheirPast) {
  target.fail(1, transient(), 3);
  put(1, "a");
  run_for(10s);
  erase(1);
  settle();
  put(2, "b");
  EXPECT_FALSE(reconciler.status(2)->error);
  EXPECT_EQ(reconciler.status(2)->state, RowState::kPending);
  settle();
  EXPECT_EQ(target.held, (std::map<int, std::string>{{2, "b"}}));
}

TEST_F(TableTest, ListsEveryRowInPages) {
  for (int i = 0; i < 10; ++i) put(i, "x");
  settle();
  erase(3);
  std::map<int, bool> seen;
  std::optional<std::size_t> place = 0;
  int pages = 0;
  while (place) {
    place = reconciler.list(
        *place, 4,
        [&](int key, const std::optional<std::string>& value, Revision, const RowStatus& status) {
          EXPECT_EQ(value.has_value(), !status.erased);
          EXPECT_TRUE(seen.emplace(key, status.erased).second);
        });
    ++pages;
  }
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(seen.size(), 10U);
  EXPECT_TRUE(seen[3]);
}

TEST(EpochTest, IsWrittenAsAVersion4Uuid) {
  const Epoch epoch = Epoch::from_random(0x0123456789abcdef, 0xfedcba9876543210);
  EXPECT_EQ(epoch.to_string(), "01234567-89ab-4def-bedc-ba9876543210");
  EXPECT_EQ(Epoch::parse(epoch.to_string()), epoch);
  EXPECT_EQ(Epoch::parse("01234567-89ab-4def-bedc-ba987654321"), std::nullopt);
  EXPECT_EQ(Epoch::parse("01234567-89ab-4def-bedc-ba98765432100"), std::nullopt);
  EXPECT_EQ(Epoch::parse("0123456789ab-4def-bedc-ba9876543210---"), std::nullopt);
  EXPECT_EQ(Epoch::parse("g1234567-89ab-4def-bedc-ba9876543210"), std::nullopt);
}

}  // namespace
}  // namespace mapgate::reconciler
