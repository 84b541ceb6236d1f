// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/socket_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mapgate::dns {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class SocketSharesTest : public testing::Test {
 protected:
  // As its owners do: a socket is made where there is room for one.
  bool open(WorkloadId workload, const std::string& name, bool idle = false) {
    if (!shares_.make_room(workload)) return false;
    sockets_.emplace(name, std::make_unique<Socket>(*this, workload, name, idle));
    return true;
  }
  void use(const std::string& name) { sockets_.at(name)->use(); }
  [[nodiscard]] std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& [name, socket] : sockets_) names.push_back(name);
    return names;
  }

 private:
  class Socket final : public SharedSocket {
   public:
    Socket(SocketSharesTest& test, WorkloadId workload, std::string name, bool idle)
        : SharedSocket(test.shares_, workload), test_(test), name_(std::move(name)), idle_(idle) {}
    [[nodiscard]] bool idle() const override { return idle_; }
    void close() override { test_.sockets_.erase(name_); }
    void use() { note_use(); }

   private:
    SocketSharesTest& test_;
    const std::string name_;
    const bool idle_;
  };

  SocketShares shares_{4, 3};
  std::map<std::string, std::unique_ptr<Socket>> sockets_;
};

TEST_F(SocketSharesTest, AtItsShareAWorkloadGetsTheRoomOfAnIdleSocketOfItsOwnOrNone) {
  ASSERT_TRUE(open(2, "other", true));
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(open(1, name));
  EXPECT_FALSE(open(1, "d")) << "an idle one of another workload is no room for it";
  EXPECT_THAT(left(), ElementsAre("a", "b", "c", "other"));
}

TEST_F(SocketSharesTest, AtItsShareTheIdleSocketThatWasUsedLongestAgoGoes) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(open(1, name, true));
  use("a");
  ASSERT_TRUE(open(1, "d"));
  EXPECT_THAT(left(), ElementsAre("a", "c", "d"));
}

TEST_F(SocketSharesTest, AtTheLimitForAllTheWorkloadWithTheMostGivesAnIdleOne) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(open(1, name));
  ASSERT_TRUE(open(1, "idle", true));
  ASSERT_TRUE(open(2, "first"));
  ASSERT_TRUE(open(2, "second"));
  EXPECT_THAT(left(), ElementsAre("a", "b", "first", "second"));
}

TEST_F(SocketSharesTest, AtTheLimitForAllABusyOneGoesOnlyOfAWorkloadWithMoreThanOneMore) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(open(1, name));
  ASSERT_TRUE(open(2, "first"));
  use("a");
  ASSERT_TRUE(open(2, "second"));
  EXPECT_THAT(left(), ElementsAre("a", "c", "first", "second")) << "used longest ago";
  EXPECT_FALSE(open(2, "third")) << "as many as the other has";
  EXPECT_FALSE(open(1, "d"));
  EXPECT_TRUE(open(3, "new"));
  EXPECT_EQ(left().size(), 4U);
}

TEST_F(SocketSharesTest, OneThatIsGoneLeavesItsRoom) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(open(1, name, true));
  ASSERT_TRUE(open(1, "d"));
  ASSERT_TRUE(open(2, "e"));
  EXPECT_THAT(left(), UnorderedElementsAre("b", "c", "d", "e"));
}

}  // namespace
}  // namespace mapgate::dns
