// SPDX-License-Identifier: Apache-2.0
// Changing the policy while it is used: add, wait until realised, remove.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

using std::chrono::milliseconds;

class ReloadTest : public EngineTest {
 protected:
  ReloadTest() { make_cgroup("web"); }

  void start_with(const std::string& workloads) {
    ASSERT_EQ(start(parse(workloads)).outcome, ApplyOutcome::kApplied);
  }
  void learn(const std::string& name, const std::string& address) {
    const auto answer = hold(name, {address});
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
    ASSERT_EQ(answer->result->outcome, dns::HoldOutcome::kOpened);
  }
  // Everything that was done to one key, in order.
  [[nodiscard]] Journal history(const std::string& key) const {
    Journal result;
    std::ranges::copy_if(journal, std::back_inserter(result), [&](const std::string& entry) {
      return entry.ends_with(key) || entry.contains(key + " ");
    });
    return result;
  }
  static std::string prefix(const std::string& cidr, const std::string& except = {}) {
    return "    - name: web\n      selector: {cgroup: /web}\n      egress:\n        - toCIDRSet: "
           "[{cidr: " +
           cidr + (except.empty() ? "" : ", except: [" + except + "]") + "}]\n";
  }
};

TEST_F(ReloadTest, ANameThatLeavesTheSpecLosesItsAddresses) {
  start_with(web("{matchName: a.example.com}, {matchName: b.example.com}"));
  learn("a.example.com", "192.0.2.1");
  learn("b.example.com", "192.0.2.2");
  ASSERT_EQ(apply(parse(web("{matchName: a.example.com}"))).outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 1U);
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.2"), 0U);
  EXPECT_FALSE(engine->judge(1, "b.example.com").may_resolve);
  EXPECT_EQ(engine->names().names(), 1U);
}

TEST_F(ReloadTest, AnAddressIsOpenOnOldAndNewPortsInBetween) {
  start_with(web("{matchName: a.example.com}", "443"));
  learn("a.example.com", "192.0.2.1");
  ASSERT_EQ(apply(parse(web("{matchName: a.example.com}", "80"))).outcome, ApplyOutcome::kApplied);
  EXPECT_THAT(
      history("mg_addresses 1 192.0.2.1"),
      testing::ElementsAre("put mg_addresses 1 192.0.2.1 = 1", "put mg_addresses 1 192.0.2.1 = 3",
                           "put mg_addresses 1 192.0.2.1 = 2"));
}

TEST_F(ReloadTest, AnExceptionGoesOnlyAfterThePrefixAroundItIsClosed) {
  start_with(prefix("10.0.0.0/8", "10.9.0.0/16"));
  const std::string inner = "mg_prefixes 1 10.9.0.0/112";
  ASSERT_EQ(apply(parse(prefix("172.16.0.0/12"))).outcome, ApplyOutcome::kApplied);
  const std::size_t opened = place("put mg_prefixes 1 172.16.0.0/108 = 1");
  std::size_t closed = 0;
  for (std::size_t i = 0; i < journal.size(); ++i) {
    if (journal[i] == "put mg_prefixes 1 10.0.0.0/104 = 0" ||
        journal[i] == "erase mg_prefixes 1 10.0.0.0/104") {
      closed = closed == 0 ? i : closed;
    }
  }
  EXPECT_LT(opened, closed) << testing::PrintToString(journal);
  EXPECT_LT(closed, place("erase " + inner)) << testing::PrintToString(journal);
  EXPECT_FALSE(maps.contents().contains("mg_prefixes 1 10.0.0.0/104"));
}

TEST_F(ReloadTest, AWorkloadThatLeavesIsDetachedBeforeItIsUnconfigured) {
  make_cgroup("db");
  const std::string db = "    - name: db\n      selector: {cgroup: /db}\n      egress: []\n";
  start_with(web("{matchName: a.example.com}") + db);
  ASSERT_EQ(apply(parse(db)).outcome, ApplyOutcome::kApplied);
  const std::size_t erased = place("erase mg_workloads 1");
  EXPECT_LT(place("detach /web"), erased);
  EXPECT_THAT(engine->allocations().workloads(), testing::SizeIs(1)) << "its id is free again";
}

TEST_F(ReloadTest, AWorkloadThatComesIsAttachedOnceItsRowsAreThere) {
  start_with(web("{matchName: a.example.com}"));
  make_cgroup("db");
  ASSERT_EQ(apply(parse(web("{matchName: a.example.com}") +
                        "    - name: db\n      selector: {cgroup: /db}\n      egress: []\n"))
                .outcome,
            ApplyOutcome::kApplied);
  EXPECT_LT(place("put mg_workloads 2 = " + std::to_string(maps.value("mg_workloads 2"))),
            place("attach /db 2"));
}

TEST_F(ReloadTest, ACgroupThatGetsAnotherWorkloadIsNeverDetached) {
  start_with(web("{matchName: a.example.com}"));
  ASSERT_EQ(
      apply(parse("    - name: other\n      selector: {cgroup: /web}\n      egress: []\n")).outcome,
      ApplyOutcome::kApplied);
  EXPECT_THAT(journal, testing::Contains("attach /web 2"));
  EXPECT_THAT(journal, testing::Not(testing::Contains("detach /web")));
}

TEST_F(ReloadTest, WhatDoesNotChangeIsNotWritten) {
  start_with(web("{matchName: a.example.com}"));
  learn("a.example.com", "192.0.2.1");
  const std::size_t before = journal.size();
  ASSERT_EQ(apply(parse(web("{matchName: a.example.com}"))).outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(journal.size(), before) << testing::PrintToString(journal);
}

TEST_F(ReloadTest, DnsSettingsOfTheNodeCannotChange) {
  start_with(web("{matchName: a.example.com}"));
  node.dns.max_held_answers /= 2;
  const ApplyResult result = apply(parse(web("{matchName: b.example.com}")));
  EXPECT_EQ(result.outcome, ApplyOutcome::kRefused);
  EXPECT_THAT(result.error, testing::HasSubstr("/node/dns"));
  EXPECT_TRUE(engine->judge(1, "a.example.com").may_resolve);
}

TEST_F(ReloadTest, MapsAreResizedBeforeTheNewPolicysFirstRow) {
  start_with(web("{matchName: a.example.com}", "443"));
  node.maps = {.addresses = 10, .prefixes = 20, .ports = 30};
  ASSERT_EQ(apply(parse(prefix("10.0.0.0/8"))).outcome, ApplyOutcome::kApplied);
  EXPECT_LT(place("resize 10 20 30"), place("put mg_prefixes 1 10.0.0.0/104 = 2"));
  const std::size_t before = journal.size();
  ASSERT_EQ(apply(parse(prefix("10.0.0.0/8"))).outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(journal.size(), before) << "the same sizes again";
}

TEST_F(ReloadTest, ASizeThatIsRefusedLeavesTheOldPolicyAndTheOldSizes) {
  start_with(web("{matchName: a.example.com}"));
  const std::size_t before = journal.size();
  const policy::NodeSettings old = node;
  node.maps.addresses = 1;
  map_control.failure = "mg_addresses holds more";
  const ApplyResult result = apply(parse(web("{matchName: b.example.com}")));
  EXPECT_EQ(result.outcome, ApplyOutcome::kRefused);
  EXPECT_EQ(result.error, "mg_addresses holds more");
  EXPECT_EQ(journal.size(), before);
  EXPECT_TRUE(engine->judge(1, "a.example.com").may_resolve);
  EXPECT_EQ(engine->options().node, old);
}

TEST_F(ReloadTest, APolicyThatFailsTakesItsSizesBack) {
  start_with(web("{matchName: a.example.com}"));
  const policy::NodeSettings old = node;
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("put mg_prefixes 1 10.0.0.0")
               ? std::optional(reconciler::ErrorClass::kPermanent)
               : std::nullopt;
  };
  node.maps.addresses += 1;
  EXPECT_EQ(apply(parse(prefix("10.0.0.0/8"))).outcome, ApplyOutcome::kFailed);
  EXPECT_EQ(engine->options().node, old);
}

TEST_F(ReloadTest, ALearnedAddressThatCannotBeWrittenDoesNotBlockAReload) {
  start_with(web("{matchName: a.example.com}", "443"));
  maps.fail = [](const std::string& operation) {
    return operation.contains("192.0.2.9") ? std::optional(reconciler::ErrorClass::kTransient)
                                           : std::nullopt;
  };
  const auto stuck = hold("a.example.com", {"192.0.2.9"});
  run_for(milliseconds(50));
  const auto result = begin_apply(parse(web("{matchName: a.example.com}", "80")));
  ASSERT_TRUE(run_until([&] { return result->has_value(); }, milliseconds(900)));
  EXPECT_EQ((*result)->outcome, ApplyOutcome::kApplied);
}

TEST_F(ReloadTest, ABlockedReloadLeavesTheOldPolicyInForceAndSaysWhatItWaitsFor) {
  start_with(prefix("10.0.0.0/8"));
  maps.fail = [](const std::string& operation) {
    return operation.contains("172.16.0.0") ? std::optional(reconciler::ErrorClass::kTransient)
                                            : std::nullopt;
  };
  const auto result = begin_apply(parse(prefix("172.16.0.0/12")));
  ASSERT_TRUE(run_until([&] { return !engine->blocked_by().empty(); }));
  EXPECT_THAT(engine->blocked_by(), testing::HasSubstr("172.16.0.0"));
  EXPECT_FALSE(*result);
  EXPECT_EQ(maps.value("mg_prefixes 1 10.0.0.0/104"), 1U);
  maps.fail = nullptr;
  ASSERT_TRUE(run_until([&] { return result->has_value(); }));
  EXPECT_EQ((*result)->outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(maps.value("mg_prefixes 1 10.0.0.0/104"), 0U);
}

TEST_F(ReloadTest, ANewerSpecTakesThePlaceOfABlockedOne) {
  start_with(prefix("10.0.0.0/8"));
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("put mg_prefixes 1 172.16.0.0")
               ? std::optional(reconciler::ErrorClass::kTransient)
               : std::nullopt;
  };
  const auto blocked = begin_apply(parse(prefix("172.16.0.0/12")));
  ASSERT_TRUE(run_until([&] { return !engine->blocked_by().empty(); }));
  const ApplyResult newer = apply(parse(prefix("192.168.0.0/16")));
  EXPECT_EQ(newer.outcome, ApplyOutcome::kApplied);
  ASSERT_TRUE(*blocked);
  EXPECT_EQ((*blocked)->outcome, ApplyOutcome::kSuperseded);
  EXPECT_EQ(maps.value("mg_prefixes 1 192.168.0.0/112"), 1U);
  EXPECT_FALSE(maps.contents().contains("mg_prefixes 1 10.0.0.0/104"));
  EXPECT_FALSE(maps.contents().contains("mg_prefixes 1 172.16.0.0/108"));
}

TEST_F(ReloadTest, ASpecThatTheKernelRefusesIsTakenBack) {
  start_with(prefix("10.0.0.0/8"));
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("put mg_prefixes 1 172.16.0.0")
               ? std::optional(reconciler::ErrorClass::kPermanent)
               : std::nullopt;
  };
  const ApplyResult result = apply(parse(prefix("172.16.0.0/12")));
  EXPECT_EQ(result.outcome, ApplyOutcome::kFailed);
  EXPECT_THAT(result.error, testing::HasSubstr("172.16.0.0"));
  EXPECT_EQ(maps.value("mg_prefixes 1 10.0.0.0/104"), 1U);
  EXPECT_EQ(engine->loop().reconciler().progress().errors, 0U) << "nothing of it is left";
  maps.fail = nullptr;
  EXPECT_EQ(apply(parse(prefix("192.168.0.0/16"))).outcome, ApplyOutcome::kApplied);
}

TEST_F(ReloadTest, OfSeveralSpecsThatWaitTheNewestWins) {
  start_with(prefix("10.0.0.0/8"));
  const auto first = begin_apply(parse(prefix("11.0.0.0/8")));
  const auto second = begin_apply(parse(prefix("12.0.0.0/8")));
  const auto third = begin_apply(parse(prefix("13.0.0.0/8")));
  ASSERT_TRUE(run_until([&] { return *first && *second && *third; }));
  EXPECT_EQ((*second)->outcome, ApplyOutcome::kSuperseded);
  EXPECT_EQ((*third)->outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(maps.value("mg_prefixes 1 13.0.0.0/104"), 1U);
  EXPECT_FALSE(maps.contents().contains("mg_prefixes 1 12.0.0.0/104"));
}

TEST_F(ReloadTest, AnAnswerThatComesDuringAReloadOpensWhatItOpensInTheNewPolicy) {
  start_with(web("{matchName: a.example.com}", "443"));
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("put mg_ports") ? std::optional(reconciler::ErrorClass::kTransient)
                                                 : std::nullopt;
  };
  const auto result = begin_apply(parse(web("{matchName: a.example.com}", "80")));
  run_for(milliseconds(50));
  const auto answer = hold("a.example.com", {"192.0.2.1"});
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 3U) << "old and new ports";
  maps.fail = nullptr;
  ASSERT_TRUE(run_until([&] { return result->has_value(); }));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.1"), 2U) << "new ports";
}

}  // namespace
}  // namespace mapgate::engine::test
