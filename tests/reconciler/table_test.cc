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

class ReaderTest : public ReconcilerTest {
 protected:
  struct Change {
    int key;
    std::optional<std::string> value;
    Revision revision;
    bool operator==(const Change&) const = default;
  };
  std::vector<Change> read(TestTable::Reader& reader, std::size_t max, ReadResult expected) {
    std::vector<Change> changes;
    const ReadResult result =
        reader.read(max, [&](int key, const std::string* value, Revision revision) {
          changes.push_back({key, value ? std::optional(*value) : std::nullopt, revision});
        });
    EXPECT_EQ(result, expected);
    return changes;
  }
};

TEST_F(ReaderTest, ListsInOrderOfRevisionInPages) {
  for (int i = 1; i <= 5; ++i) put(i, "a");
  put(2, "b");
  auto reader = table.changes_since(0);
  EXPECT_EQ(read(reader, 3, ReadResult::kMore),
            (std::vector<Change>{{1, "a", 1}, {3, "a", 3}, {4, "a", 4}}));
  EXPECT_EQ(reader.position(), 4U);
  EXPECT_EQ(read(reader, 2, ReadResult::kUpToDate),
            (std::vector<Change>{{5, "a", 5}, {2, "b", 6}}));
  EXPECT_EQ(read(reader, 2, ReadResult::kUpToDate), (std::vector<Change>{}));
}

TEST_F(ReaderTest, SeesWhatChangesBetweenItsPagesOnce) {
  for (int i = 1; i <= 4; ++i) put(i, "a");
  auto reader = table.changes_since(0);
  EXPECT_EQ(read(reader, 2, ReadResult::kMore).size(), 2U);
  put(1, "b");  // delivered before
  put(3, "b");  // not yet
  erase(4);     // not yet
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate),
            (std::vector<Change>{{1, "b", 5}, {3, "b", 6}, {4, std::nullopt, 7}}));
}

TEST_F(ReaderTest, FollowsFromARevision) {
  for (int i = 1; i <= 4; ++i) put(i, "a");
  auto reader = table.changes_since(3);
  auto other = table.changes_since(3);
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate), (std::vector<Change>{{4, "a", 4}}));
  put(5, "a");
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate), (std::vector<Change>{{5, "a", 5}}));
  EXPECT_EQ(read(other, 9, ReadResult::kUpToDate), (std::vector<Change>{{4, "a", 4}, {5, "a", 5}}));
}

TEST_F(ReaderTest, SeesDeletionsThatAreConfirmedAlready) {
  put(1, "a");
  put(2, "a");
  settle();
  auto reader = table.changes_since(2);
  erase(1);
  settle();
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate), (std::vector<Change>{{1, std::nullopt, 3}}));
  put(1, "b");
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate), (std::vector<Change>{{1, "b", 4}}));
}

TEST_F(ReaderTest, ThatFellTooFarBehindIsToldToListAgain) {
  auto behind = table.changes_since(0);
  put(0, "a");
  auto listing = table.changes_since(0);
  for (int i = 1; i <= static_cast<int>(TestTable::kForgetAfter) + 10; ++i) {
    put(i, "a");
    settle();
    erase(i);
    settle();
  }
  EXPECT_EQ(read(behind, 9, ReadResult::kMustRelist).size(), 0U);
  EXPECT_EQ(read(listing, 9, ReadResult::kMustRelist).size(), 0U);
  auto fresh = table.changes_since(0);
  std::size_t deletions = 0;
  for (ReadResult result = ReadResult::kMore; result == ReadResult::kMore;) {
    result = fresh.read(
        100, [&](int, const std::string* value, Revision) { deletions += value == nullptr; });
    EXPECT_NE(result, ReadResult::kMustRelist);
  }
  EXPECT_EQ(deletions, TestTable::kForgetAfter);
  EXPECT_EQ(table.size(), 1U);
}

TEST_F(ReaderTest, IsNoRowForAReconcilerThatComesLater) {
  auto reader = table.changes_since(0);
  put(1, "a");
  erase(1);
  settle();
  put(2, "a");
  FakeTarget late_target;
  TestReconciler late{table, late_target, options};
  settle(late);
  EXPECT_EQ(late_target.log.size(), 1U);
  EXPECT_EQ(late.progress().rows, 1U);
  EXPECT_EQ(read(reader, 9, ReadResult::kUpToDate).size(), 2U);
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
