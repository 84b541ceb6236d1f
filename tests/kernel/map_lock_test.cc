// SPDX-License-Identifier: Apache-2.0
// One writer per map, whatever way leads to it.
#include <mapgate/maps/map_lock.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/requirements.h"
#include "tests/support/temporary_bpffs.h"

namespace mapgate::maps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kAcquired = 0;
constexpr int kCannotRun = 100;

class KernelMapLock : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::missing_for_bpf();
    MAPGATE_REQUIRE(missing.empty(), missing);
    directory_.emplace();
    pin_ = directory_->path() / "mg_test";
    map_.emplace(make(pin_));
  }

  static Map make(const std::string& pin) {
    auto map = Map::create({.type = BPF_MAP_TYPE_LPM_TRIE,
                            .key_size = 8,
                            .value_size = 8,
                            .max_entries = 4,
                            .flags = BPF_F_NO_PREALLOC,
                            .name = "mg_test"});
    if (!map) throw std::runtime_error(map.error().text());
    if (auto pinned = map->pin(pin); !pinned) throw std::runtime_error(pinned.error().text());
    return std::move(*map);
  }

  // The errno of another process that locks what is pinned there, or kAcquired.
  static int lock_elsewhere(const std::string& pin) {
    return test::run_in_child([&] {
      auto map = Map::open_pin(pin);
      if (!map) return kCannotRun;
      const auto lock = MapLock::acquire(*map);
      return lock ? kAcquired : lock.error().code;
    });
  }

  std::optional<test::TemporaryBpffsDirectory> directory_;
  std::string pin_;
  std::optional<Map> map_;
};

TEST_F(KernelMapLock, AnotherProcessIsRefusedUntilTheLockIsReleased) {
  {
    const auto lock = MapLock::acquire(*map_);
    ASSERT_TRUE(lock) << lock.error().text();
    EXPECT_EQ(lock->map_id(), map_->info().id);
    EXPECT_EQ(lock_elsewhere(pin_), EBUSY);
  }
  EXPECT_EQ(lock_elsewhere(pin_), kAcquired);
}

TEST_F(KernelMapLock, TheErrorNamesThePinAndTheProcessThatHoldsIt) {
  const auto lock = MapLock::acquire(*map_);
  ASSERT_TRUE(lock) << lock.error().text();
  auto same = Map::open_pin(pin_);
  ASSERT_TRUE(same);
  const auto refused = MapLock::acquire(*same);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EBUSY);
  EXPECT_THAT(refused.error().text(), HasSubstr(pin_));
  EXPECT_THAT(refused.error().text(), HasSubstr("process " + std::to_string(getpid()) + " ("));
}

TEST_F(KernelMapLock, AProcessThatIsKilledHoldsNothing) {
  test::Child holder([&] {
    auto map = Map::open_pin(pin_);
    const auto lock = MapLock::acquire(*map);
    for (;;) pause();
    return 0;
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (lock_elsewhere(pin_) != EBUSY && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(lock_elsewhere(pin_), EBUSY);
  kill(holder.pid(), SIGKILL);
  (void)holder.wait();
  EXPECT_EQ(lock_elsewhere(pin_), kAcquired);
}

TEST_F(KernelMapLock, OtherWaysToTheSameMapAreTheSameLock) {
  const auto lock = MapLock::acquire(*map_);
  ASSERT_TRUE(lock) << lock.error().text();
  const fs::path second_pin = directory_->path() / "mg_second";
  ASSERT_EQ(link(pin_.c_str(), second_pin.c_str()), 0);
  EXPECT_EQ(lock_elsewhere(second_pin), EBUSY);
  const fs::path symbolic = directory_->path() / "mg_symbolic";
  fs::create_symlink(pin_, symbolic);
  EXPECT_EQ(lock_elsewhere(symbolic), EBUSY);
}

TEST_F(KernelMapLock, ABindMountInOtherNamespacesIsTheSameLock) {
  const auto lock = MapLock::acquire(*map_);
  ASSERT_TRUE(lock) << lock.error().text();
  EXPECT_EQ(
      test::run_in_child([&] {
        const fs::path elsewhere = directory_->path() / "mounted";
        fs::create_directory(elsewhere);
        if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0 ||
            mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount(directory_->path().c_str(), elsewhere.c_str(), nullptr, MS_BIND, nullptr) != 0)
          return kCannotRun;
        auto map = Map::open_pin(elsewhere / "mg_test");
        if (!map) return kCannotRun;
        const auto refused = MapLock::acquire(*map);
        return refused ? kAcquired : refused.error().code;
      }),
      EBUSY);
}

TEST_F(KernelMapLock, OtherMapsAreLocksOfTheirOwn) {
  const auto lock = MapLock::acquire(*map_);
  ASSERT_TRUE(lock) << lock.error().text();
  const std::string other_pin = directory_->path() / "mg_other";
  const Map other = make(other_pin);
  EXPECT_EQ(lock_elsewhere(other_pin), kAcquired);
}

TEST_F(KernelMapLock, MovingKeepsTheLock) {
  std::optional<MapLock> kept;
  {
    auto lock = MapLock::acquire(*map_);
    ASSERT_TRUE(lock) << lock.error().text();
    kept.emplace(std::move(*lock));
  }
  EXPECT_EQ(lock_elsewhere(pin_), EBUSY);
  kept.reset();
  EXPECT_EQ(lock_elsewhere(pin_), kAcquired);
}

// Anybody may lock the inode that the kernel's descriptors share: that must not keep an agent out.
TEST_F(KernelMapLock, ALockByAProcessThatDoesNotHaveTheMapDoesNotCount) {
  struct stat own {};
  ASSERT_EQ(stat("/proc/self/ns/pid", &own), 0);
  MAPGATE_REQUIRE(own.st_ino == 0xEFFFFFFC, "not in the initial process namespace");
  UniqueFd unrelated(eventfd(0, EFD_CLOEXEC));
  struct flock same_byte {};
  same_byte.l_type = F_WRLCK;
  same_byte.l_whence = SEEK_SET;
  same_byte.l_start = map_->info().id;
  same_byte.l_len = 1;
  ASSERT_EQ(fcntl(unrelated.get(), F_OFD_SETLK, &same_byte), 0) << errno;
  const auto lock = MapLock::acquire(*map_);
  EXPECT_TRUE(lock) << lock.error().text();
}

}  // namespace
}  // namespace mapgate::maps
