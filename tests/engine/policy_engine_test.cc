// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/policy_engine.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

using dns::HoldOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

class PolicyEngineTest : public EngineTest {
 protected:
  PolicyEngineTest() {
    node.dns.gate_deadline = milliseconds(200);
    node.dns.max_held_answers = 15;
    node.dns.max_held_answers_per_workload = 8;
  }
  void SetUp() override {
    make_cgroup("web");
    ASSERT_EQ(
        start(parse(web("{matchName: api.example.com}, {matchPattern: \"*.cdn.example.com\"}") +
                    "      dns: [{matchName: only-resolve.example.com}]\n"
                    "    - name: other\n"
                    "      selector: {cgroup: /other}\n"
                    "      egress: [{toFQDNs: [{matchName: other.example.com}]}]\n"))
            .outcome,
        ApplyOutcome::kApplied);
  }
  // Writes of this address fail until further notice.
  void refuse(const std::string& address,
              reconciler::ErrorClass error = reconciler::ErrorClass::kTransient) {
    maps.fail = [address, error](const std::string& operation) {
      const bool refused = operation.starts_with("put mg_addresses 1 " + address + " ") ||
                           operation.starts_with("put mg_addresses 2 " + address + " ");
      return refused ? std::optional(error) : std::nullopt;
    };
  }
};

TEST_F(PolicyEngineTest, ACgroupIsAttachedOnlyWhenItsRowsAreInTheMaps) {
  EXPECT_NE(maps.value("mg_workloads 1"), 0U);
  EXPECT_LT(place("put mg_workloads 1 = " + std::to_string(maps.value("mg_workloads 1"))),
            place("attach /web 1"));
}

TEST_F(PolicyEngineTest, OnlyNamesOfTheSpecMayBeResolved) {
  EXPECT_TRUE(engine->judge(1, "api.example.com").may_resolve);
  EXPECT_TRUE(engine->judge(1, "a.cdn.example.com").may_resolve);
  EXPECT_TRUE(engine->judge(1, "only-resolve.example.com").may_resolve);
  EXPECT_FALSE(engine->judge(1, "evil.example.com").may_resolve);
  EXPECT_FALSE(engine->judge(2, "api.example.com").may_resolve);
  EXPECT_FALSE(engine->judge(3, "api.example.com").may_resolve) << "there is no such workload";
}

TEST_F(PolicyEngineTest, OnlyTheNodesResolversMayBeAskedUnlessTheSpecSaysOtherwise) {
  std::ofstream(resolv_conf()) << "nameserver 192.0.2.53\n";
  const auto may_ask = [&](const char* resolver) {
    return engine->may_ask(1, policy::IpAddress::parse(resolver).value());
  };
  EXPECT_TRUE(may_ask("192.0.2.53"));
  EXPECT_FALSE(may_ask("198.51.100.53"));
  EXPECT_FALSE(engine->may_ask(3, policy::IpAddress::parse("192.0.2.53").value()))
      << "there is no such workload";
  ASSERT_EQ(apply(parse(web("{matchName: api.example.com}") +
                        "      resolvers: [198.51.100.0/24, \"2001:db8::53\"]\n"))
                .outcome,
            ApplyOutcome::kApplied);
  EXPECT_TRUE(may_ask("198.51.100.53"));
  EXPECT_TRUE(may_ask("2001:db8::53"));
  EXPECT_FALSE(may_ask("192.0.2.53"));
}

TEST_F(PolicyEngineTest, AnAnswerIsHeldUntilTheMapHasItsAddresses) {
  const auto answer = hold("api.example.com", {"192.0.2.1", "2001:db8::1"});
  EXPECT_FALSE(answer->result) << "released before anything was written";
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kOpened);
  EXPECT_EQ(answer->result->revision, engine->table().revision());
  EXPECT_LE(answer->result->committed, answer->result->realised);
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 1U);
  EXPECT_EQ(maps.value("mg_addresses 1 2001:db8::1"), 1U);
}

TEST_F(PolicyEngineTest, AnAnswerWhoseAddressesAreThereIsReleasedAtOnce) {
  const auto first = hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(run_until([&] { return first->result.has_value(); }));
  const auto second = hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(second->result);
  EXPECT_EQ(second->result->outcome, HoldOutcome::kOpened);
  EXPECT_EQ(second->result->revision, first->result->revision);
}

TEST_F(PolicyEngineTest, AnAnswerThatChangesNothingWaitsForARowThatIsPending) {
  refuse("192.0.2.1");
  const auto first = hold("api.example.com", {"192.0.2.1"});
  const auto second = hold("api.example.com", {"192.0.2.1"});
  run_for(milliseconds(50));
  EXPECT_FALSE(second->result) << "the row is not in the map";
  maps.fail = nullptr;
  ASSERT_TRUE(run_until([&] { return second->result.has_value(); }));
  EXPECT_EQ(second->result->outcome, HoldOutcome::kOpened);
  EXPECT_EQ(first->result->outcome, HoldOutcome::kOpened);
}

TEST_F(PolicyEngineTest, AnAnswerIsHeldForAllOfItsAddresses) {
  refuse("192.0.2.2");
  const auto answer = hold("api.example.com", {"192.0.2.1", "192.0.2.2"});
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kTimedOut);
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 1U);
}

TEST_F(PolicyEngineTest, ARowThatFailsHoldsUpNoOtherAnswer) {
  refuse("192.0.2.1");
  const auto stuck = hold("api.example.com", {"192.0.2.1"});
  run_for(milliseconds(30));
  for (int i = 2; i < 50; ++i) {
    const auto answer = hold("a.cdn.example.com", {"192.0.2." + std::to_string(i)});
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }, milliseconds(100))) << i;
    EXPECT_EQ(answer->result->outcome, HoldOutcome::kOpened);
  }
  ASSERT_TRUE(run_until([&] { return stuck->result.has_value(); }));
  EXPECT_EQ(stuck->result->outcome, HoldOutcome::kTimedOut);
  EXPECT_TRUE(engine->held_answers().empty());
}

TEST_F(PolicyEngineTest, ARowThatCannotBeWrittenFailsItsAnswerBeforeTheDeadline) {
  refuse("192.0.2.1", reconciler::ErrorClass::kPermanent);
  const auto answer = hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }, milliseconds(150)));
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kFailed);
}

TEST_F(PolicyEngineTest, ANameThatOpensNothingIsNotHeld) {
  const auto answer = hold("only-resolve.example.com", {"192.0.2.1"});
  ASSERT_TRUE(answer->result);
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kOpened);
  EXPECT_EQ(answer->result->revision, 0U);
  run_for(milliseconds(20));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 0U);
}

TEST_F(PolicyEngineTest, AnswersBeyondTheLimitOfAWorkloadAreNotHeldAndNobodyElseIsTouched) {
  refuse("192.0.2.1");
  std::vector<std::shared_ptr<Answer>> answers;
  for (std::uint32_t i = 0; i < node.dns.max_held_answers_per_workload; ++i)
    answers.push_back(hold("api.example.com", {"192.0.2.1"}));
  EXPECT_EQ(engine->held_answers().size(), node.dns.max_held_answers_per_workload);
  EXPECT_EQ(engine->held_answers().front().name, "api.example.com");
  EXPECT_EQ(engine->held_answers().front().rows.size(), 1U);
  const auto one_more = hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(one_more->result);
  EXPECT_EQ(one_more->result->outcome, HoldOutcome::kOverloaded);
  const auto other = hold("other.example.com", {"192.0.2.1"}, seconds(60), 2);
  EXPECT_FALSE(other->result) << "another workload's answer is held";
}

TEST_F(PolicyEngineTest, AtTheLimitAnAnswerWhoseRowsAreThereStillPasses) {
  const auto known = hold("api.example.com", {"192.0.2.7"});
  ASSERT_TRUE(run_until([&] { return known->result.has_value(); }));
  refuse("192.0.2.1");
  std::vector<std::shared_ptr<Answer>> answers;
  for (std::uint32_t i = 0; i < node.dns.max_held_answers_per_workload; ++i)
    answers.push_back(hold("api.example.com", {"192.0.2.1"}));
  const auto again = hold("api.example.com", {"192.0.2.7"});
  ASSERT_TRUE(again->result);
  EXPECT_EQ(again->result->outcome, HoldOutcome::kOpened);
}

TEST_F(PolicyEngineTest, AnswersBeyondTheLimitOfTheNodeAreNotHeld) {
  refuse("192.0.2.1");
  std::vector<std::shared_ptr<Answer>> answers;
  for (std::uint32_t i = 0; i < node.dns.max_held_answers; ++i)
    answers.push_back(i % 2 == 0 ? hold("api.example.com", {"192.0.2.1"})
                                 : hold("other.example.com", {"192.0.2.1"}, seconds(60), 2));
  EXPECT_EQ(engine->held_answers().size(), node.dns.max_held_answers);
  const auto one_more = hold("other.example.com", {"192.0.2.1"}, seconds(60), 2);
  ASSERT_TRUE(one_more->result);
  EXPECT_EQ(one_more->result->outcome, HoldOutcome::kOverloaded);
  ASSERT_TRUE(run_until([&] { return engine->held_answers().empty(); }));
}

TEST_F(PolicyEngineTest, ShuttingDownEndsEveryAnswer) {
  refuse("192.0.2.1");
  const auto answer = hold("api.example.com", {"192.0.2.1"});
  run_for(milliseconds(20));
  engine->shut_down();
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }, milliseconds(100)));
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kShuttingDown);
}

TEST_F(PolicyEngineTest, AnAnswerThatIsHeldWhenTheEngineGoesIsDecidedOnce) {
  refuse("192.0.2.1");
  const auto answer = hold("api.example.com", {"192.0.2.1"});
  run_for(milliseconds(20));
  engine.reset();
  ASSERT_TRUE(answer->result);
  EXPECT_EQ(answer->result->outcome, HoldOutcome::kShuttingDown);
}

TEST_F(PolicyEngineTest, TracesOfAnswersNameTheWorkload) {
  dns::AnswerRecord record;
  record.workload = 1;
  record.name = "api.example.com";
  engine->answered(record);
  ASSERT_EQ(engine->answers().answers().size(), 1U);
  EXPECT_EQ(engine->answers().answers().front().workload, "web");
}

class ExpiryTest : public EngineTest {
 protected:
  ExpiryTest() {
    node.dns.min_ttl = seconds(0);
    node.dns.grace = seconds(1);
  }
};

TEST_F(ExpiryTest, AnAddressGoesWhenItsTimeIsOver) {
  ASSERT_EQ(start(parse(web("{matchName: api.example.com}"))).outcome, ApplyOutcome::kApplied);
  const auto answer = hold("api.example.com", {"192.0.2.1"}, seconds(0));
  ASSERT_TRUE(run_until([&] { return maps.value("mg_addresses 1 192.0.2.1") == 1; }));
  EXPECT_TRUE(run_until([&] { return maps.value("mg_addresses 1 192.0.2.1") == 0; }, seconds(3)));
  EXPECT_EQ(engine->names().pairs(), 0U);
}

TEST_F(ExpiryTest, RoomThatAnExpiredAddressLeavesIsUsedByOneThatWaits) {
  ASSERT_EQ(start(parse(web("{matchPattern: \"*.example.com\"}"))).outcome, ApplyOutcome::kApplied);
  maps.fail = [this](const std::string& operation) -> std::optional<reconciler::ErrorClass> {
    const bool full = maps.value("mg_addresses 1 192.0.2.1") != 0;
    if (full && operation.starts_with("put mg_addresses 1 192.0.2.2 "))
      return reconciler::ErrorClass::kCapacity;
    return std::nullopt;
  };
  const auto first = hold("a.example.com", {"192.0.2.1"}, seconds(0));
  ASSERT_TRUE(run_until([&] { return first->result.has_value(); }));
  const auto second = hold("b.example.com", {"192.0.2.2"}, seconds(60));
  run_for(milliseconds(50));
  EXPECT_EQ(engine->loop().reconciler().progress().parked, 1U);
  EXPECT_TRUE(run_until([&] { return maps.value("mg_addresses 1 192.0.2.2") == 1; }, seconds(3)));
}

TEST_F(EngineTest, AWorkloadWhoseCgroupComesLaterIsAttachedThen) {
  ASSERT_EQ(start(parse(web("{matchName: api.example.com}"))).outcome, ApplyOutcome::kApplied);
  EXPECT_THAT(journal, testing::Not(testing::Contains("attach /web 1")));
  make_cgroup("web");
  EXPECT_TRUE(run_until([&] { return std::ranges::count(journal, "attach /web 1") > 0; }));
}

TEST_F(EngineTest, NothingIsChangedByASpecThatDoesNotFit) {
  node.maps.ports = 1;
  const ApplyResult result =
      start(parse("    - name: web\n      selector: {cgroup: /web}\n      egress:\n        - "
                  "toCIDR: [10.0.0.0/8]\n"
                  "          toPorts: [{port: 1, protocol: TCP}, {port: 2, protocol: UDP}, {port: "
                  "3, protocol: TCP}]\n"));
  EXPECT_EQ(result.outcome, ApplyOutcome::kRefused);
  EXPECT_FALSE(result.error.empty());
  EXPECT_THAT(journal, testing::IsEmpty());
}

}  // namespace
}  // namespace mapgate::engine::test
