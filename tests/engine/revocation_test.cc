// SPDX-License-Identifier: Apache-2.0
// What becomes of connections when the policy changes.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RevocationTest : public EngineTest {
 protected:
  RevocationTest() {
    make_cgroup("web");
    node.dns.min_ttl = seconds(0);
    node.dns.grace = seconds(0);
  }

  static policy::Spec spec(const std::string& names, const std::string& more = "onRevoke: destroy",
                           const std::string& port = "443") {
    return parse(web(names, port) + "      " + more + "\n");
  }
  void start_with(const std::string& names, const std::string& more = "onRevoke: destroy") {
    ASSERT_EQ(start(spec(names, more)).outcome, ApplyOutcome::kApplied);
  }
  void reload(const policy::Spec& to) { ASSERT_EQ(apply(to).outcome, ApplyOutcome::kApplied); }
  void learn(const std::string& name, const std::string& address,
             std::chrono::seconds ttl = seconds(60)) {
    const auto answer = hold(name, {address}, ttl);
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  }
  void learn_and_connect(const std::string& name, const std::string& address) {
    learn(name, address);
    connections.add(address);
  }
  void learn_connect_and_expire(const std::string& name, const std::string& address) {
    learn(name, address, seconds(0));
    connections.add(address);
    ASSERT_TRUE(run_until([&] { return maps.value("mg_addresses 1 " + address) == 0; }));
  }
  [[nodiscard]] Journal ended() const {
    Journal result;
    std::ranges::copy_if(journal, std::back_inserter(result),
                         [](const std::string& entry) { return entry.starts_with("end "); });
    return result;
  }
};

constexpr const char* kBoth = "{matchName: a.test}, {matchName: b.test}";
constexpr const char* kOnlyA = "{matchName: a.test}";

TEST_F(RevocationTest, AReloadEndsThoseThatItForbidsOnceTheirRowsAreGone) {
  start_with(kBoth);
  learn_and_connect("a.test", "192.0.2.1");
  learn_and_connect("b.test", "192.0.2.2");
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), ElementsAre("end 192.0.2.2"));
  EXPECT_LT(place("erase mg_addresses 1 192.0.2.2"), place("end 192.0.2.2"));
  EXPECT_EQ(engine->revocation().counters().ended, 1U);
  EXPECT_THAT(engine->revocation().recent(), ElementsAre(HasSubstr("workload web: tcp ")));
  EXPECT_THAT(engine->revocation().recent(), ElementsAre(HasSubstr("to 192.0.2.2:443: ended")));
}

TEST_F(RevocationTest, KeepLeavesThemAlone) {
  start_with(kBoth, "onRevoke: keep");
  learn_and_connect("b.test", "192.0.2.2");
  reload(spec(kOnlyA, "onRevoke: keep"));
  EXPECT_THAT(ended(), IsEmpty());
}

TEST_F(RevocationTest, APortThatGoesEndsThem) {
  start_with(kOnlyA);
  learn_and_connect("a.test", "192.0.2.1");
  connections.port_sets_of_port = 1;
  reload(spec(kOnlyA, "onRevoke: destroy", "80"));
  EXPECT_THAT(ended(), ElementsAre("end 192.0.2.1"));
}

TEST_F(RevocationTest, OneWhoseAddressHasExpiredGoesWithItsNameAndNotBefore) {
  start_with(kBoth);
  learn_connect_and_expire("b.test", "192.0.2.2");
  reload(spec("{matchName: b.test}"));
  EXPECT_THAT(ended(), IsEmpty());
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), ElementsAre("end 192.0.2.2"));
}

TEST_F(RevocationTest, OneOfWhichNothingIsKnownStays) {
  start_with(kBoth);
  connections.add("198.51.100.1");
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), IsEmpty());
}

TEST_F(RevocationTest, OneThatIsMadeBeforeTheRowsAreGoneIsEndedToo) {
  start_with(kBoth);
  learn("b.test", "192.0.2.2");
  connections.before_list = [&, calls = 0]() mutable {
    if (++calls == 2) connections.add("192.0.2.2");
  };
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), ElementsAre("end 192.0.2.2"));
}

TEST_F(RevocationTest, AnAnswerThatComesWhileTheyAreListedIsNotTakenBack) {
  start_with(kBoth);
  learn("b.test", "192.0.2.2");
  std::shared_ptr<Answer> answer;
  connections.before_list = [&] {
    if (!answer) answer = hold("a.test", {"192.0.2.2"});
  };
  reload(spec(kOnlyA));
  ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  EXPECT_EQ(maps.value("mg_addresses 1 192.0.2.2"), 1U) << "a.test opens it, too";
}

TEST_F(RevocationTest, LoopbackStaysWhereItIsAllowed) {
  start_with(kBoth);
  // Each is new when it is looked at: nothing says that it was forbidden before.
  connections.before_list = [&, calls = 0]() mutable {
    if (++calls == 2) connections.add("127.0.0.1");
    if (calls == 4) connections.add("127.0.0.1");
  };
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), IsEmpty());
  reload(parse(web(kOnlyA) + "      onRevoke: destroy\n      allowLoopback: false\n"));
  EXPECT_THAT(ended(), Contains("end 127.0.0.1"));
}

TEST_F(RevocationTest, AuditEndsNothingAndWhatItLetPassGoesWhenItEnds) {
  start_with(kBoth);
  learn_and_connect("b.test", "192.0.2.2");
  reload(parse(web(kOnlyA) + "      onRevoke: destroy\n      mode: audit\n"));
  EXPECT_THAT(ended(), IsEmpty());
  reload(spec(kOnlyA));
  EXPECT_THAT(ended(), ElementsAre("end 192.0.2.2"));
}

TEST_F(RevocationTest, WhatCannotBeEndedIsCountedAndWhatIsGoneIsNot) {
  start_with(kBoth);
  learn_and_connect("b.test", "192.0.2.2");
  connections.end_failure = std::make_error_code(std::errc::no_such_file_or_directory);
  reload(spec(kOnlyA));
  EXPECT_EQ(engine->revocation().counters().failed, 0U);
  reload(spec(kBoth));
  learn_and_connect("b.test", "192.0.2.2");
  connections.end_failure = std::make_error_code(std::errc::operation_not_supported);
  reload(spec(kOnlyA));
  EXPECT_GT(engine->revocation().counters().failed, 0U);
  EXPECT_THAT(engine->revocation().recent(), Contains(HasSubstr("cannot be ended")));
}

TEST_F(RevocationTest, AReloadGoesOnWhereConnectionsCannotBeListed) {
  start_with(kBoth);
  connections.list_failure = "sock_diag: no such module";
  reload(spec(kOnlyA));
  EXPECT_EQ(engine->revocation().counters().unlisted, 1U);
}

}  // namespace
}  // namespace mapgate::engine::test
