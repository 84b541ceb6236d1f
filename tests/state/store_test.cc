// SPDX-License-Identifier: Apache-2.0
#include "agent/state/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/requirements.h"

namespace mapgate::state {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

const system_clock::time_point kNow{seconds(1'700'000'000)};

LearnedAddress learned(std::string_view name, std::string_view address, seconds left) {
  return {.workload = "web",
          .name = std::string(name),
          .address = policy::IpAddress::parse(address).value(),
          .expires = kNow + left};
}

policy::Allocations some_allocations() {
  policy::Allocations allocations;
  EXPECT_TRUE(allocations.restore_workload("web", 7));
  EXPECT_TRUE(allocations.restore_port_set("web", "tcp:443", 63));
  EXPECT_TRUE(allocations.restore_port_set("web", "all", 0));
  EXPECT_TRUE(allocations.restore_workload("db", 1));
  return allocations;
}

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    std::string path = (fs::temp_directory_path() / "mapgate-store-XXXXXX").native();
    directory_ = mkdtemp(path.data());
  }
  ~StoreTest() override {
    store_.reset();
    if (mounted_) umount2(directory_.c_str(), MNT_DETACH);
    fs::remove_all(directory_);
  }

  // Opens, and expects that to work.
  Store& open(const StoreOptions& options = {}) {
    store_.reset();
    auto opened = Store::open(directory_, options);
    if (!opened) throw std::runtime_error(opened.error().text);
    store_ = *std::move(opened);
    return *store_;
  }
  std::vector<LearnedAddress> load(system_clock::time_point now = kNow) {
    return store_->load_learned(now).value();
  }
  fs::path file() const { return directory_ / "state.db"; }

  // What another program does to the file.
  void execute(const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  // A store with allocations, closed.
  void make_store() {
    ASSERT_TRUE(open().save_allocations(some_allocations()));
    for (int i = 0; i < 500; ++i)
      store_->learn(learned("n" + std::to_string(i), "192.0.2.1", seconds(60)));
    ASSERT_TRUE(store_->flush());
    store_.reset();
  }
  void expect_moved_aside_and_fresh(const fs::path& where) {
    Store& store = open();
    EXPECT_EQ(store.moved_aside(), where);
    EXPECT_TRUE(fs::exists(where));
    EXPECT_EQ(store.allocations(), policy::Allocations());
    EXPECT_THAT(load(), IsEmpty());
    EXPECT_TRUE(store.save_allocations(some_allocations()));
    EXPECT_EQ(open().allocations(), some_allocations());
    EXPECT_FALSE(store_->moved_aside());
  }

  fs::path directory_;
  bool mounted_ = false;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, StartsEmpty) {
  Store& store = open();
  EXPECT_EQ(store.allocations(), policy::Allocations());
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_FALSE(store.moved_aside());
}

TEST_F(StoreTest, AllocationsSurvive) {
  ASSERT_TRUE(open().save_allocations(some_allocations()));
  EXPECT_EQ(store_->allocations(), some_allocations());
  EXPECT_EQ(open().allocations(), some_allocations());
}

TEST_F(StoreTest, NumbersMayChangeHands) {
  policy::Allocations swapped;
  ASSERT_TRUE(swapped.restore_workload("web", 1));
  ASSERT_TRUE(swapped.restore_workload("db", 7));
  ASSERT_TRUE(swapped.restore_port_set("web", "all", 63));
  ASSERT_TRUE(open().save_allocations(some_allocations()));
  ASSERT_TRUE(store_->save_allocations(swapped));
  EXPECT_EQ(open().allocations(), swapped);
  ASSERT_TRUE(store_->save_allocations({}));
  EXPECT_EQ(open().allocations(), policy::Allocations());
}

TEST_F(StoreTest, AllocationsAreOnDiskWhenSaved) {
  ASSERT_TRUE(open().save_allocations(some_allocations()));
  // A copy taken now is what a killed daemon leaves.
  fs::create_directory(directory_ / "killed");
  for (const char* name : {"state.db", "state.db-wal"}) {
    if (fs::exists(directory_ / name)) fs::copy(directory_ / name, directory_ / "killed" / name);
  }
  const auto killed = Store::open(directory_ / "killed");
  ASSERT_TRUE(killed) << killed.error().text;
  EXPECT_EQ((*killed)->allocations(), some_allocations());
}

TEST_F(StoreTest, LearnedAddressesSurvive) {
  const auto v4 = learned("a.org", "192.0.2.1", seconds(60));
  const auto v6 = learned("a.org", "2001:db8::1", seconds(90));
  open().learn(v4);
  store_->learn(v6);
  ASSERT_TRUE(store_->flush());
  open();
  EXPECT_THAT(load(), UnorderedElementsAre(v4, v6));
}

TEST_F(StoreTest, TheLastChangeOfAnAddressCounts) {
  open().learn(learned("a.org", "192.0.2.1", seconds(60)));
  store_->learn(learned("a.org", "192.0.2.1", seconds(90)));
  store_->learn(learned("b.org", "192.0.2.1", seconds(60)));
  ASSERT_TRUE(store_->flush());
  store_->forget(learned("b.org", "192.0.2.1", seconds(0)));
  store_->forget(learned("c.org", "192.0.2.1", seconds(0)));
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(), ElementsAre(learned("a.org", "192.0.2.1", seconds(90))));
  EXPECT_EQ(store_->health().queued, 0U);
}

TEST_F(StoreTest, ExpiredAddressesAreNotLoadedAndGo) {
  open().learn(learned("a.org", "192.0.2.1", seconds(60)));
  store_->learn(learned("b.org", "192.0.2.2", seconds(61)));
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(kNow + seconds(60)), ElementsAre(learned("b.org", "192.0.2.2", seconds(61))));
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(kNow), ElementsAre(learned("b.org", "192.0.2.2", seconds(61))));
}

TEST_F(StoreTest, PurgingDeletesWhatHasExpiredByThen) {
  open().learn(learned("a.org", "192.0.2.1", seconds(60)));
  store_->learn(learned("b.org", "192.0.2.2", seconds(61)));
  ASSERT_TRUE(store_->flush());
  store_->purge_expired(kNow + seconds(60));
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(), ElementsAre(learned("b.org", "192.0.2.2", seconds(61))));
}

TEST_F(StoreTest, WritesBehindWithoutBeingAsked) {
  open({.write_delay = milliseconds(5)}).learn(learned("a.org", "192.0.2.1", seconds(60)));
  const auto give_up = std::chrono::steady_clock::now() + seconds(20);
  while (store_->health().written == 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(load(), SizeIs(1));
}

TEST_F(StoreTest, WritesWhatIsQueuedWhenItEnds) {
  open({.write_delay = seconds(1000)}).learn(learned("a.org", "192.0.2.1", seconds(60)));
  open();
  EXPECT_THAT(load(), SizeIs(1));
}

TEST_F(StoreTest, AFullQueueDropsAndCounts) {
  open({.write_delay = seconds(1000), .max_queued = 2});
  for (const char* name : {"a.org", "b.org", "c.org", "d.org"})
    store_->learn(learned(name, "192.0.2.1", seconds(60)));
  store_->learn(learned("a.org", "192.0.2.1", seconds(90)));  // has its place already
  EXPECT_EQ(store_->health().queued, 2U);
  EXPECT_EQ(store_->health().dropped, 2U);
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(), UnorderedElementsAre(learned("a.org", "192.0.2.1", seconds(90)),
                                           learned("b.org", "192.0.2.1", seconds(60))));
}

TEST_F(StoreTest, ManyThreadsMayLearnWhileOthersAreWritten) {
  open({.write_delay = milliseconds(0)});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        store_->learn(
            learned("n" + std::to_string(i) + "." + std::to_string(t), "192.0.2.1", seconds(60)));
        static_cast<void>(store_->health());
      }
    });
  }
  policy::Allocations allocations;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(allocations.workload_id("w" + std::to_string(i)));
    EXPECT_TRUE(store_->save_allocations(allocations));
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(store_->flush());
  EXPECT_THAT(load(), SizeIs(2000));
  EXPECT_EQ(store_->health().written, 2000U);
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsMovedAside) {
  std::ofstream(file()) << std::string(10000, 'x');
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-1");
}

TEST_F(StoreTest, ADatabaseCutShortIsMovedAside) {
  make_store();
  ASSERT_GT(fs::file_size(file()), 8192U);
  fs::resize_file(file(), 6000);
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-1");
}

TEST_F(StoreTest, AnEmptiedFileIsMovedAsideToo) {
  make_store();
  fs::resize_file(file(), 0);
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-1");
}

TEST_F(StoreTest, ADamagedPageIsMovedAside) {
  make_store();
  std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(4096);
  stream << std::string(4096, '\xff');
  stream.close();
  std::ofstream(directory_ / "state.db.corrupt-1") << "an older one";
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-2");
}

TEST_F(StoreTest, AllocationsThatContradictThemselvesAreMovedAside) {
  make_store();
  execute("INSERT INTO port_sets (workload, port_set, bit) VALUES ('nobody', 'all', 3)");
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-1");
}

TEST_F(StoreTest, AnotherProgramsDatabaseIsMovedAside) {
  execute("CREATE TABLE notes (text TEXT); PRAGMA user_version = 1;");
  expect_moved_aside_and_fresh(directory_ / "state.db.corrupt-1");
}

TEST_F(StoreTest, ADatabaseOfANewerVersionIsLeftAlone) {
  make_store();
  execute("PRAGMA user_version = 2");
  const auto opened = Store::open(directory_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, StoreErrorKind::kIncompatible);
  execute("PRAGMA user_version = 1");
  EXPECT_EQ(open().allocations(), some_allocations());
}

TEST_F(StoreTest, ADirectoryHasOneStore) {
  open();
  const auto second = Store::open(directory_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, StoreErrorKind::kBusy);
  EXPECT_THAT(second.error().text, testing::HasSubstr(directory_.native()));
  store_.reset();
  EXPECT_TRUE(Store::open(directory_));
}

TEST_F(StoreTest, ADirectoryThatIsNotThereIsAnError) {
  const auto opened = Store::open(directory_ / "absent");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, StoreErrorKind::kNotWritable);
  EXPECT_THAT(opened.error().text, testing::HasSubstr("absent/state.db"));
}

TEST_F(StoreTest, AReadOnlyFileIsAnErrorAndStays) {
  MAPGATE_REQUIRE(geteuid() == 0, "needs root to give up root's rights over files");
  make_store();
  fs::permissions(directory_, fs::perms(0555));
  fs::permissions(file(), fs::perms(0444));
  setfsuid(65534);
  const auto opened = Store::open(directory_);
  setfsuid(0);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, StoreErrorKind::kNotWritable) << opened.error().text;
  EXPECT_FALSE(fs::exists(directory_ / "state.db.corrupt-1"));
}

TEST_F(StoreTest, AFullDiskFailsTheWriteAndKeepsWhatWasThere) {
  MAPGATE_REQUIRE(mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=256k") == 0,
                  "needs the right to mount a tmpfs");
  mounted_ = true;
  ASSERT_TRUE(open({.write_delay = seconds(1000)}).save_allocations(some_allocations()));
  std::ofstream filler(directory_ / "filler");
  filler << std::string(1 << 20, 'x') << std::flush;

  policy::Allocations more = some_allocations();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(more.workload_id("workload-" + std::to_string(i)));
  const auto saved = store_->save_allocations(more);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().kind, StoreErrorKind::kDiskFull) << saved.error().text;
  EXPECT_EQ(store_->allocations(), some_allocations());

  for (int i = 0; i < 1000; ++i)
    store_->learn(learned("n" + std::to_string(i), "192.0.2.1", seconds(60)));
  const auto flushed = store_->flush();
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().kind, StoreErrorKind::kDiskFull) << flushed.error().text;
  EXPECT_EQ(store_->health().queued, 1000U);
  EXPECT_EQ(store_->health().failures, 1U);
  EXPECT_EQ(store_->health().last_error->kind, StoreErrorKind::kDiskFull);

  // With room again, the next attempt writes all of it.
  fs::remove(directory_ / "filler");
  filler.close();
  ASSERT_TRUE(store_->flush());
  EXPECT_FALSE(store_->health().last_error);
  EXPECT_EQ(open().allocations(), some_allocations());
  EXPECT_THAT(load(), SizeIs(1000));
}

}  // namespace
}  // namespace mapgate::state
