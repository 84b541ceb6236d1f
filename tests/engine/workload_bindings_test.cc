// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/workload_bindings.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

class WorkloadBindingsTest : public EngineTest {
 protected:
  void SetUp() override { restart(); }
  [[nodiscard]] bool has(const std::string& entry) const {
    return std::ranges::find(journal, entry) != journal.end();
  }
  void remove_cgroup(const std::string& name) const { std::filesystem::remove(cgroups() / name); }
};

TEST_F(WorkloadBindingsTest, ACgroupThatIsNotThereIsNoError) {
  bindings->bind("/web", 1);
  ASSERT_NE(bindings->find("/web"), nullptr);
  EXPECT_FALSE(bindings->find("/web")->present);
  EXPECT_TRUE(bindings->find("/web")->error.empty());
}

TEST_F(WorkloadBindingsTest, ACgroupThatIsMadeAnewIsAttachedAgain) {
  make_cgroup("web");
  bindings->bind("/web", 1);
  EXPECT_TRUE(has("attach /web 1"));
  journal.clear();
  remove_cgroup("web");
  ASSERT_TRUE(run_until([&] { return !bindings->find("/web")->present; }));
  EXPECT_FALSE(bindings->find("/web")->cgroup);
  make_cgroup("web");
  EXPECT_TRUE(run_until([&] { return has("attach /web 1"); }));
}

TEST_F(WorkloadBindingsTest, AnAttachThatFailsIsTriedAgain) {
  make_cgroup("web");
  enforcement->failure = "no luck";
  bindings->bind("/web", 1);
  EXPECT_EQ(bindings->find("/web")->error, "no luck");
  EXPECT_FALSE(bindings->find("/web")->cgroup);
  enforcement->failure.clear();
  EXPECT_TRUE(run_until([&] { return has("attach /web 1"); }, std::chrono::seconds(3)));
  EXPECT_TRUE(bindings->find("/web")->error.empty());
}

TEST_F(WorkloadBindingsTest, WhatIsUnboundIsDetachedAndNotAttachedAgain) {
  make_cgroup("web");
  bindings->bind("/web", 1);
  bindings->unbind("/web");
  EXPECT_TRUE(has("detach /web"));
  journal.clear();
  remove_cgroup("web");
  make_cgroup("web");
  run_for(std::chrono::milliseconds(50));
  EXPECT_THAT(journal, testing::IsEmpty());
}

TEST_F(WorkloadBindingsTest, BindingTwiceAttachesOnce) {
  make_cgroup("web");
  bindings->bind("/web", 1);
  bindings->bind("/web", 1);
  EXPECT_EQ(std::ranges::count(journal, "attach /web 1"), 1);
  bindings->bind("/web", 2);
  EXPECT_TRUE(has("attach /web 2")) << "another workload is another binding";
}

}  // namespace
}  // namespace mapgate::engine::test
