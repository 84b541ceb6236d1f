// SPDX-License-Identifier: Apache-2.0
// A new daemon on what an earlier one left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

class RestartTest : public EngineTest {
 protected:
  RestartTest() { make_cgroup("web"); }

  [[nodiscard]] policy::Spec spec() const { return parse(web("{matchName: api.example.com}")); }
  void start_and_learn() {
    ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
    const auto answer = hold("api.example.com", {"192.0.2.1"});
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  }
  // Runs until the maps have been compared as a whole.
  void wait_for_resync() {
    ASSERT_TRUE(
        run_until([&] { return engine->loop().reconciler().progress().resync.completed > 0; }));
  }
};

TEST_F(RestartTest, RowsThatAreRightAreNotWrittenAgain) {
  start_and_learn();
  journal.clear();
  restart();
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  wait_for_resync();
  EXPECT_THAT(journal, testing::ElementsAre("attach /web 1"));
  EXPECT_GT(engine->operations().adopted, 0U);
  EXPECT_EQ(engine->operations().written, 0U);
}

TEST_F(RestartTest, LearnedNamesSurvive) {
  start_and_learn();
  restart();
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  std::vector<std::string> names;
  engine->names().for_each([&](const dns::CachedAddress& entry) {
    names.push_back(std::string(entry.name) + " " + entry.address.to_string());
  });
  EXPECT_THAT(names, testing::ElementsAre("api.example.com 192.0.2.1"));
}

TEST_F(RestartTest, AnAddressInTheMapsThatNobodyKnowsIsKeptForAWhile) {
  start_and_learn();
  engine.reset();
  bindings.reset();
  store.reset();
  std::filesystem::remove_all(directory_ / "state");
  std::filesystem::create_directories(directory_ / "state");
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  wait_for_resync();
  run_for(std::chrono::milliseconds(50));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 1U);
  EXPECT_EQ(engine->names().pairs(), 1U);
}

TEST_F(RestartTest, WhatTheNewSpecDoesNotHaveIsRemoved) {
  start_and_learn();
  restart();
  ASSERT_EQ(start(parse(web("{matchName: other.example.com}", "80"))).outcome,
            ApplyOutcome::kApplied);
  wait_for_resync();
  run_for(std::chrono::milliseconds(50));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 0U);
}

TEST_F(RestartTest, AnAddressWhoseNameLeftTheSpecMeanwhileIsNotTakenForUnknown) {
  start_and_learn();
  restart();
  ASSERT_EQ(start(parse(web("{matchName: other.example.com}"))).outcome, ApplyOutcome::kApplied);
  wait_for_resync();
  run_for(std::chrono::milliseconds(50));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 0U);
  EXPECT_EQ(engine->names().pairs(), 0U);
}

TEST_F(RestartTest, MapsOfANewLayoutAreUsedOnceTheyHoldEverythingLearnedAddressesIncluded) {
  start_and_learn();
  maps.clear();
  map_control.awaits = true;
  restart();
  journal.clear();
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  EXPECT_LT(place("put mg_addresses 1 192.0.2.1 = 1"), place("contents complete"));
  EXPECT_LT(place("contents complete"), place("attach /web 1"));
}

TEST_F(RestartTest, NoAnswerOpensAddressesInMapsThatNobodyReadsSoFar) {
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  map_control.awaits = true;
  const auto answer = hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(answer->result);
  EXPECT_EQ(answer->result->outcome, dns::HoldOutcome::kRefused);
}

TEST_F(RestartTest, ACgroupThatTheNewSpecDoesNotHaveIsDetachedAndOthersAreNot) {
  make_cgroup("db");
  const std::string db = "    - name: db\n      selector: {cgroup: /db}\n      egress: []\n";
  ASSERT_EQ(start(parse(web("{matchName: api.example.com}") + db)).outcome, ApplyOutcome::kApplied);
  restart();
  ASSERT_EQ(start(spec()).outcome, ApplyOutcome::kApplied);
  EXPECT_THAT(journal, testing::Contains("detach /db"));
  EXPECT_THAT(journal, testing::Not(testing::Contains("detach /web")));
}

TEST_F(RestartTest, NothingIsTouchedWhenTheSpecCannotBeCompiled) {
  start_and_learn();
  journal.clear();
  restart();
  policy::Spec too_big = parse(
      "    - name: web\n      selector: {cgroup: /web}\n      egress:\n        - toCIDR: "
      "[10.0.0.0/8]\n"
      "          toPorts: [{port: 1, protocol: TCP}, {port: 2, protocol: UDP}]\n");
  node.maps.ports = 1;
  EXPECT_EQ(start(std::move(too_big)).outcome, ApplyOutcome::kRefused);
  run_for(std::chrono::milliseconds(50));
  EXPECT_THAT(journal, testing::IsEmpty());
}

TEST_F(RestartTest, IdsOfWorkloadsStayTheSame) {
  const std::string db = "    - name: db\n      selector: {cgroup: /db}\n      egress: []\n";
  ASSERT_EQ(start(parse(web("{matchName: a.example.com}") + db)).outcome, ApplyOutcome::kApplied);
  const auto before = engine->allocations();
  restart();
  ASSERT_EQ(start(parse(db + web("{matchName: a.example.com}"))).outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(engine->allocations(), before);
}

}  // namespace
}  // namespace mapgate::engine::test
