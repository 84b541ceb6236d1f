// SPDX-License-Identifier: Apache-2.0
#include "agent/workload/cgroup_watcher.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/io_context.hpp>

#include "tests/support/requirements.h"
#include "tests/support/temporary_cgroup.h"

namespace mapgate::workload {
namespace {

using Event = std::pair<std::string, std::optional<CgroupId>>;

class CgroupWatcherTest : public testing::Test {
 protected:
  void SetUp() override {
    MAPGATE_REQUIRE(cgroup_.valid(), "needs root and cgroup v2");
    auto watcher =
        CgroupWatcher::create(loop_.get_executor(), *test::cgroup_root(),
                              [this](const std::string& path, std::optional<CgroupId> id) {
                                events_.emplace_back(path, id);
                              });
    ASSERT_TRUE(watcher) << watcher.error().message();
    watcher_ = std::move(*watcher);
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return cgroup_.path() + "/" + name;
  }
  CgroupId make(const std::string& name) {
    std::filesystem::create_directory(cgroup_.directory() / name);
    return *cgroup_id(cgroup_.directory() / name);
  }
  void remove(const std::string& name) {
    ASSERT_EQ(rmdir((cgroup_.directory() / name).c_str()), 0) << errno;
  }

  // The events so far, after the loop has had nothing to do for a moment.
  std::vector<Event> drain() {
    loop_.restart();
    while (loop_.run_one_for(std::chrono::milliseconds(50)) != 0) {
    }
    return std::exchange(events_, {});
  }

  test::TemporaryCgroup cgroup_;
  boost::asio::io_context loop_;
  std::vector<Event> events_;
  std::unique_ptr<CgroupWatcher> watcher_;
};

TEST_F(CgroupWatcherTest, ACgroupThatIsThereIsReturnedWithTheIdThatTheKernelUses) {
  const CgroupId id = make("web");
  const auto now = watcher_->watch(path("web"));
  ASSERT_TRUE(now);
  EXPECT_EQ(*now, id);
  EXPECT_THAT(drain(), testing::IsEmpty());
}

TEST_F(CgroupWatcherTest, ACgroupThatComesLaterIsReported) {
  ASSERT_EQ(watcher_->watch(path("web")).value(), std::nullopt);
  const CgroupId id = make("web");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("web"), id)));
}

TEST_F(CgroupWatcherTest, ACgroupWhoseParentsComeLaterIsReported) {
  ASSERT_EQ(watcher_->watch(path("a/b/c")).value(), std::nullopt);
  make("a");
  EXPECT_THAT(drain(), testing::IsEmpty());
  make("a/b");
  const CgroupId id = make("a/b/c");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("a/b/c"), id)));
}

TEST_F(CgroupWatcherTest, ParentsMadeInOneGoAreNotMissed) {
  ASSERT_EQ(watcher_->watch(path("a/b/c")).value(), std::nullopt);
  make("a");
  make("a/b");
  const CgroupId id = make("a/b/c");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("a/b/c"), id)));
}

TEST_F(CgroupWatcherTest, ACgroupThatGoesAndComesBackHasAnotherId) {
  const CgroupId first = make("web");
  ASSERT_EQ(watcher_->watch(path("web")).value(), first);
  remove("web");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("web"), std::nullopt)));
  const CgroupId second = make("web");
  EXPECT_NE(first, second);
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("web"), second)));
}

TEST_F(CgroupWatcherTest, ACgroupReplacedBetweenTwoLooksIsReportedAsGoneAndThere) {
  const CgroupId first = make("web");
  ASSERT_EQ(watcher_->watch(path("web")).value(), first);
  remove("web");
  const CgroupId second = make("web");
  EXPECT_THAT(drain(),
              testing::ElementsAre(Event(path("web"), std::nullopt), Event(path("web"), second)));
}

TEST_F(CgroupWatcherTest, AParentThatGoesAndComesBackIsFollowedAgain) {
  make("slice");
  make("slice/web");
  ASSERT_TRUE(watcher_->watch(path("slice/web")).value());
  remove("slice/web");
  remove("slice");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("slice/web"), std::nullopt)));
  make("slice");
  drain();
  const CgroupId id = make("slice/web");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("slice/web"), id)));
}

TEST_F(CgroupWatcherTest, SiblingsAndChildrenAreNobodysBusiness) {
  make("web");
  ASSERT_TRUE(watcher_->watch(path("web")).value());
  make("web-2");
  make("web/child");
  remove("web/child");
  remove("web-2");
  EXPECT_THAT(drain(), testing::IsEmpty());
}

TEST_F(CgroupWatcherTest, WhatIsNoLongerWatchedIsNotReportedAndCostsNoWatch) {
  make("a");
  make("a/web");
  const std::size_t before = watcher_->watched_directories();
  ASSERT_TRUE(watcher_->watch(path("a/web")).value());
  EXPECT_GT(watcher_->watched_directories(), before);
  watcher_->unwatch(path("a/web"));
  EXPECT_EQ(watcher_->watched_directories(), before);
  remove("a/web");
  EXPECT_THAT(drain(), testing::IsEmpty());
}

TEST_F(CgroupWatcherTest, AQueueThatOverflowsLosesNothing) {
  std::size_t limit = 0;
  std::ifstream("/proc/sys/fs/inotify/max_queued_events") >> limit;
  MAPGATE_REQUIRE(limit > 0 && limit <= 20'000,
                  "the inotify queue is too long to overflow in a test");
  ASSERT_EQ(watcher_->watch(path("web")).value(), std::nullopt);
  // Alternating names: equal events that follow each other are merged into one.
  for (std::size_t i = 0; i <= limit / 2; ++i) {
    make("noise");
    remove("noise");
  }
  const CgroupId id = make("web");
  EXPECT_THAT(drain(), testing::ElementsAre(Event(path("web"), id)));
}

TEST_F(CgroupWatcherTest, PathsThatAreNotCanonicalAreRefused) {
  for (const char* bad : {"", "web", "/web/", "//web", "/a/../b", "/a/./b", "/.."}) {
    EXPECT_EQ(watcher_->watch(bad).error(), std::errc::invalid_argument) << bad;
  }
}

TEST_F(CgroupWatcherTest, TheRootCanBeWatched) {
  EXPECT_EQ(watcher_->watch("/").value(), *cgroup_id(*test::cgroup_root()));
}

TEST(CgroupWatcherCreateTest, ARootThatIsNotThereIsAnError) {
  boost::asio::io_context loop;
  const auto watcher =
      CgroupWatcher::create(loop.get_executor(), "/nonexistent", [](const auto&, auto) {});
  ASSERT_FALSE(watcher);
  EXPECT_EQ(watcher.error(), std::errc::no_such_file_or_directory);
}

TEST_F(CgroupWatcherTest, HandlersMayUnwatchWhatTheyAreToldOf) {
  make("a");
  std::vector<std::string> seen;
  auto watcher = CgroupWatcher::create(loop_.get_executor(), *test::cgroup_root(),
                                       [&](const std::string& where, std::optional<CgroupId>) {
                                         seen.push_back(where);
                                         watcher_->unwatch(where);
                                       });
  watcher_ = std::move(*watcher);
  ASSERT_TRUE(watcher_->watch(path("a")).value());
  remove("a");
  make("a");
  drain();
  EXPECT_THAT(seen, testing::ElementsAre(path("a"), path("a")));
}

}  // namespace
}  // namespace mapgate::workload
