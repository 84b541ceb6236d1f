// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <set>

#include "agent/dns/message.h"
#include "tests/dns/fake_world.h"

namespace mapgate::dns {
namespace {

using std::chrono::milliseconds;
using test::FakeClient;
using test::FakeWorld;
using test::MessageBuilder;
using test::Messages;
using testing::ElementsAre;

constexpr std::uint8_t kServfail = 2;
constexpr std::uint8_t kRefused = 5;

Message query(std::uint16_t id, std::string_view name = "a.test", std::uint16_t type = kTypeA) {
  return MessageBuilder(id).question(name, type).bytes();
}

std::uint8_t code_of(const std::optional<Message>& reply) {
  return reply && reply->size() > 3 ? (*reply)[3] & 0x0f : 0xff;
}

// Both families, UDP and TCP.
struct Way {
  int family;
  int type;
};
class EveryWay : public testing::TestWithParam<Way> {
 protected:
  [[nodiscard]] std::uint16_t port_of(const FakeWorld& world, std::uint32_t slot = 0) const {
    const ProxyPorts& ports = world.proxy->ports();
    if (GetParam().type == SOCK_STREAM)
      return GetParam().family == AF_INET ? ports.tcp4 : ports.tcp6;
    return GetParam().family == AF_INET ? ports.udp4[slot] : ports.udp6[slot];
  }
  FakeClient client_of(const FakeWorld& world) const {
    return FakeClient(GetParam().family, GetParam().type, port_of(world));
  }
  FakeWorld world_{{}, GetParam().family};
};
INSTANTIATE_TEST_SUITE_P(Proxy, EveryWay,
                         testing::Values(Way{AF_INET, SOCK_DGRAM}, Way{AF_INET, SOCK_STREAM},
                                         Way{AF_INET6, SOCK_DGRAM}, Way{AF_INET6, SOCK_STREAM}),
                         [](const auto& way) {
                           return std::string(way.param.type == SOCK_DGRAM ? "Udp" : "Tcp") +
                                  (way.param.family == AF_INET ? "4" : "6");
                         });

TEST_P(EveryWay, AnAnswerLeavesOnlyAfterItsHoldOpened) {
  FakeClient client = client_of(world_);
  client.send(query(0x1234));
  ASSERT_TRUE(world_.run_until([&] { return world_.gate.held.size() == 1; }));
  world_.run_for(milliseconds(50));
  EXPECT_FALSE(client.receive());
  EXPECT_EQ(world_.gate.held[0].name, "a.test");
  EXPECT_EQ(world_.gate.held[0].addresses.size(), 1U);
  EXPECT_TRUE(world_.gate.records.empty());

  world_.gate.finish(HoldOutcome::kOpened);
  const auto answer = world_.await(client);
  ASSERT_TRUE(answer);
  EXPECT_EQ(*answer,
            MessageBuilder::response_to(query(0x1234)).a("a.test", 60, "192.0.2.1").bytes());
  ASSERT_EQ(world_.gate.records.size(), 1U);
  const AnswerRecord& record = world_.gate.records[0].record;
  EXPECT_TRUE(record.released);
  EXPECT_EQ(record.hold.revision, 42U);
  EXPECT_LE(record.query_arrived, record.upstream_answered);
  EXPECT_LE(record.upstream_answered + milliseconds(50), record.answer_sent);
  EXPECT_EQ(world_.proxy->counters().answers_released, 1U);
  EXPECT_EQ(world_.proxy->sessions(), 0U);
}

TEST_P(EveryWay, AnAnswerWithoutAddressesIsNotHeld) {
  world_.resolver.answer_with(
      [](const Message& asked) { return Messages{MessageBuilder::response_to(asked, 3).bytes()}; });
  FakeClient client = client_of(world_);
  client.send(query(5));
  EXPECT_EQ(code_of(world_.await(client)), 3);
  EXPECT_TRUE(world_.gate.held.empty());
  EXPECT_EQ(world_.proxy->counters().answers_passed, 1U);
}

TEST_P(EveryWay, ANameThatThePolicyDoesNotMatchIsRefusedAndNotForwarded) {
  world_.gate.verdict.may_resolve = false;
  FakeClient client = client_of(world_);
  client.send(query(5, "wWw.Evil.test"));
  const auto reply = world_.await(client);
  EXPECT_EQ(code_of(reply), kRefused);
  EXPECT_TRUE(answers_query(*reply, query(5, "wWw.Evil.test"),
                            *parse_query(query(5, "wWw.Evil.test"))->question));
  EXPECT_THAT(world_.gate.judged, ElementsAre("www.evil.test"));
  EXPECT_TRUE(world_.resolver.queries.empty());
  EXPECT_EQ(world_.proxy->counters().refused, 1U);
}

TEST_P(EveryWay, AResolverThatTheWorkloadMayNotAskIsNotAsked) {
  world_.gate.resolver_allowed = false;
  world_.gate.verdict.on_denied_name = DeniedNameAnswer::kNxdomain;
  FakeClient client = client_of(world_);
  client.send(query(5));
  EXPECT_EQ(code_of(world_.await(client)), kRefused) << "the name may exist";
  EXPECT_TRUE(world_.resolver.queries.empty());
  EXPECT_EQ(world_.proxy->counters().resolvers_refused, 1U);
  ASSERT_EQ(world_.gate.denials.size(), 1U);
  EXPECT_EQ(world_.gate.denials[0].first, "a.test");
  EXPECT_EQ(world_.gate.denials[0].second.reason, DenialReason::kResolver);
  EXPECT_EQ(world_.gate.denials[0].second.resolver, world_.resolver.endpoint().address);
}

TEST_P(EveryWay, ADeniedNameDoesNotExistWhereThePolicySaysSo) {
  world_.gate.verdict = {.may_resolve = false, .on_denied_name = DeniedNameAnswer::kNxdomain};
  FakeClient client = client_of(world_);
  client.send(MessageBuilder(5).question("eViL.test", kTypeA).edns(4096, true).bytes());
  const auto reply = world_.await(client);
  EXPECT_EQ(code_of(reply), 3);
  EXPECT_EQ(world_.proxy->counters().denied_nxdomain, 1U);
  ASSERT_EQ(world_.gate.denials.size(), 1U);
  EXPECT_EQ(world_.gate.denials[0].second.reason, DenialReason::kName);
}

TEST_P(EveryWay, ADeniedNameGetsNoAnswerWhereThePolicySaysSo) {
  world_.gate.verdict = {.may_resolve = false, .on_denied_name = DeniedNameAnswer::kDrop};
  FakeClient client = client_of(world_);
  client.send(query(5));
  ASSERT_TRUE(world_.run_until([&] { return world_.proxy->counters().denied_dropped == 1; }));
  world_.run_for(milliseconds(20));
  EXPECT_FALSE(client.receive());
  EXPECT_TRUE(world_.resolver.queries.empty());
}

TEST_P(EveryWay, TheQuestionGoesThroughByteForByteWithEdnsAndAnIdOfItsOwn) {
  world_.gate.open_at_once = true;
  FakeClient client = client_of(world_);
  std::set<std::uint16_t> ids;
  for (std::uint16_t id = 1; id <= 20; ++id) {
    const Message asked = MessageBuilder(id).question("A.tEsT", kTypeA).edns(4096, true).bytes();
    client.send(asked);
    const auto answer = world_.await(client);
    ASSERT_TRUE(answer);
    EXPECT_EQ(message_id(*answer), id);
    Message forwarded = world_.resolver.queries.back();
    ids.insert(message_id(forwarded));
    set_message_id(forwarded, id);
    EXPECT_EQ(forwarded, asked);
  }
  EXPECT_GT(ids.size(), 18U);
  EXPECT_GT(*ids.rbegin(), 20U);
}

TEST_P(EveryWay, SeveralQuestionsAreAFormatError) {
  FakeClient client = client_of(world_);
  client.send(MessageBuilder(9).question("a.test", kTypeA).question("b.test", kTypeA).bytes());
  EXPECT_EQ(code_of(world_.await(client)), 1);
  client.send(MessageBuilder(9).bytes());
  EXPECT_EQ(code_of(world_.await(client)), 1);
  EXPECT_EQ(world_.proxy->counters().format_errors, 2U);
}

TEST_P(EveryWay, UpdatesAndZoneTransfersAreNotImplemented) {
  FakeClient client = client_of(world_);
  client.send(MessageBuilder(9, 0x2800).question("a.test", 6).bytes());
  EXPECT_EQ(code_of(world_.await(client)), 4);
  client.send(query(9, "a.test", kTypeAxfr));
  EXPECT_EQ(code_of(world_.await(client)), 4);
  EXPECT_TRUE(world_.resolver.queries.empty());
}

TEST_P(EveryWay, AResolverThatIsDownGivesServfailAtOnce) {
  world_.resolver.stop();
  FakeClient client = client_of(world_);
  client.send(query(5));
  EXPECT_EQ(code_of(world_.await(client)), kServfail);
  EXPECT_EQ(world_.proxy->counters().upstream_failures, 1U);
}

TEST_P(EveryWay, AWorkloadWithTooManyQueriesInWorkGetsServfail) {
  ProxyOptions options;
  options.max_sessions_per_workload = 2;
  FakeWorld world(options, GetParam().family);
  FakeClient client = client_of(world);
  for (std::uint16_t id = 1; id <= 3; ++id) client.send(query(id));
  const auto reply = world.await(client);
  EXPECT_EQ(code_of(reply), kServfail);
  EXPECT_EQ(message_id(*reply), 3);
  EXPECT_EQ(world.proxy->counters().overloaded, 1U);
  world.flows.flow->workload = 2;
  FakeClient other = client_of(world);
  other.send(query(4));
  ASSERT_TRUE(world.run_until([&] { return world.gate.held.size() == 3; }));
  while (!world.gate.held.empty()) world.gate.finish(HoldOutcome::kOpened);
  EXPECT_EQ(code_of(world.await(client)), 0);
  EXPECT_EQ(code_of(world.await(other)), 0);
}

TEST_P(EveryWay, TheProxyMayGoWhileAnswersAreHeldAndSent) {
  FakeClient client = client_of(world_);
  client.send(query(1));
  ASSERT_TRUE(world_.run_until([&] { return world_.gate.held.size() == 1; }));
  world_.resolver.answer_with([](const Message&) { return Messages{}; });
  client.send(query(2));
  ASSERT_TRUE(world_.run_until([&] { return world_.resolver.queries.size() == 2; }));
  world_.proxy.reset();
  world_.gate.finish(HoldOutcome::kOpened);
  world_.run_for(milliseconds(20));
  EXPECT_TRUE(world_.gate.records.empty());
}

TEST_P(EveryWay, RandomPacketsHarmNobodyElse) {
  world_.gate.open_at_once = true;
  std::mt19937 random(7);
  FakeClient good = client_of(world_);
  const Message base = MessageBuilder(3).question("a.test", kTypeA).edns(1232, false).bytes();
  for (int round = 0; round < 100; ++round) {
    FakeClient bad = client_of(world_);
    for (int i = 0; i < 20; ++i) {
      Message packet = base;
      for (unsigned n = 0; n < 1 + random() % 5; ++n)
        packet[random() % packet.size()] = static_cast<std::uint8_t>(random());
      if (random() % 3 == 0) packet.resize(random() % packet.size());
      bad.send(packet);
    }
    good.send(query(static_cast<std::uint16_t>(round)));
    const auto answer = world_.await(good);
    ASSERT_TRUE(answer) << round;
    EXPECT_EQ(message_id(*answer), round);
  }
  EXPECT_GT(world_.proxy->counters().malformed, 100U);
}

class ProxyTest : public testing::Test {
 protected:
  FakeClient udp(FakeWorld& world, std::uint32_t slot = 0) {
    return FakeClient(AF_INET, SOCK_DGRAM, world.proxy->ports().udp4[slot]);
  }
  FakeClient tcp(FakeWorld& world) {
    return FakeClient(AF_INET, SOCK_STREAM, world.proxy->ports().tcp4);
  }
  // Sends a query and ends its hold so; gives the gate's record.
  AnswerRecord hold_ends(FakeWorld& world, FakeClient& client, HoldOutcome outcome) {
    client.send(query(77));
    EXPECT_TRUE(world.run_until([&] { return !world.gate.held.empty(); }));
    world.gate.finish(outcome);
    EXPECT_TRUE(world.run_until([&] { return !world.gate.records.empty(); }));
    return world.gate.records.back().record;
  }
};

TEST_F(ProxyTest, HasAPortForEverySlotAndFamily) {
  FakeWorld world;
  std::set<std::uint16_t> ports;
  for (std::uint32_t slot = 0; slot < MG_DNS_SLOTS; ++slot) {
    ports.insert(world.proxy->ports().udp4[slot]);
    EXPECT_NE(world.proxy->ports().udp6[slot], 0);
  }
  EXPECT_EQ(ports.size(), std::size_t{MG_DNS_SLOTS});
  EXPECT_FALSE(ports.contains(0));
  EXPECT_NE(world.proxy->ports().tcp4, 0);
}

TEST_F(ProxyTest, ARestartKeepsItsPortsUnlessTheyAreTaken) {
  ProxyOptions options;
  {
    FakeWorld world;
    options.preferred_ports = world.proxy->ports();
  }
  auto world = std::make_unique<FakeWorld>(options);
  EXPECT_EQ(world->proxy->ports(), options.preferred_ports);
  FakeWorld second(options);
  for (std::uint32_t slot = 0; slot < MG_DNS_SLOTS; ++slot) {
    EXPECT_NE(second.proxy->ports().udp4[slot], 0);
    EXPECT_NE(second.proxy->ports().udp4[slot], options.preferred_ports.udp4[slot]);
  }
  EXPECT_NE(second.proxy->ports().tcp4, options.preferred_ports.tcp4);
}

TEST_F(ProxyTest, AsksForTheFlowBySlotAndClient) {
  FakeWorld world;
  FakeClient client = udp(world, 5);
  client.send(query(1));
  ASSERT_TRUE(world.run_until([&] { return !world.flows.keys.empty(); }));
  EXPECT_EQ(world.flows.keys[0].slot, 5U);
  EXPECT_EQ(world.flows.keys[0].transport, Transport::kUdp);
  EXPECT_EQ(world.flows.keys[0].client.port, client.port());
  EXPECT_EQ(world.flows.keys[0].client.address.to_string(), "127.0.0.1");
}

TEST_F(ProxyTest, TheAnswerComesFromThePortThatWasAsked) {
  FakeWorld world;
  world.gate.open_at_once = true;
  for (std::uint32_t slot = 0; slot < MG_DNS_SLOTS; ++slot) {
    FakeClient client = udp(world, slot);  // connected: takes nothing from another port
    client.send(query(1));
    EXPECT_TRUE(world.await(client)) << slot;
  }
}

// The process's own network stands in for another one: the proxy takes what it is given.
TEST_P(EveryWay, AnotherNetworkIsServedUntilItIsRemoved) {
  constexpr NetworkId kOther = 7;
  const auto ports = world_.proxy->add_network(kOther, {}, {});
  ASSERT_TRUE(ports) << ports.error();
  const bool v4 = GetParam().family == AF_INET;
  const std::uint16_t port = GetParam().type == SOCK_STREAM
                                 ? (v4 ? ports->tcp4 : ports->tcp6)
                                 : (v4 ? ports->udp4[0] : ports->udp6[0]);
  FakeClient client(GetParam().family, GetParam().type, port);
  client.send(query(5));
  ASSERT_TRUE(world_.run_until([&] { return world_.gate.held.size() == 1; }));
  EXPECT_EQ(world_.flows.keys.back().network, kOther);
  world_.gate.finish(HoldOutcome::kOpened);
  ASSERT_TRUE(world_.await(client));

  // One query waits for the resolver, which stays silent; its session ends with the network.
  world_.resolver.answer_with([](const Message&) { return Messages{}; });
  client.send(query(6));
  ASSERT_TRUE(world_.run_until([&] { return world_.resolver.queries.size() == 2; }));
  EXPECT_EQ(world_.proxy->sessions(), 1U);
  world_.proxy->remove_network(kOther);
  EXPECT_EQ(world_.proxy->sessions(), 0U);
  world_.proxy->remove_network(kOther);
  // Its ports are free again.
  EXPECT_EQ(world_.proxy->add_network(kOther, {}, *ports), *ports);
}

TEST_F(ProxyTest, AQueryThatCameBeforeTheNetworkWasServedIsAnswered) {
  constexpr NetworkId kOther = 7;
  FakeWorld world;
  const auto ports = world.proxy->add_network(kOther, {}, {});
  ASSERT_TRUE(ports) << ports.error();
  FakeClient client(AF_INET, SOCK_DGRAM, ports->udp4[3]);
  const Endpoint source{policy::IpAddress::parse("127.0.0.1").value(), client.port()};
  world.gate.open_at_once = true;
  world.proxy->take_query(kOther + 1, 3, source, query(4));
  world.proxy->take_query(kOther, 3, source, query(5));
  EXPECT_EQ(message_id(*world.await(client)), 5);
  EXPECT_EQ(world.gate.judged.size(), 1U);
}

TEST_F(ProxyTest, AClientThatWasNotSteeredHereGetsNothing) {
  FakeWorld world;
  world.flows.flow.reset();
  FakeClient client = udp(world);
  client.send(query(1));
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().unknown_flows == 1; }));
  FakeClient stream = tcp(world);
  ASSERT_TRUE(world.run_until([&] { return stream.closed(); }));
  EXPECT_EQ(world.proxy->counters().tcp_rejected, 1U);
  EXPECT_FALSE(client.receive());
}

TEST_F(ProxyTest, ATimeoutOfTheGateEndsAsThePolicySays) {
  struct Case {
    OnGateTimeout action;
    bool audit;
    int code;  // -1: nothing comes
  };
  for (const Case& c :
       {Case{OnGateTimeout::kServfail, false, kServfail}, Case{OnGateTimeout::kRelease, false, 0},
        Case{OnGateTimeout::kDrop, false, -1}, Case{OnGateTimeout::kServfail, true, 0}}) {
    for (const HoldOutcome outcome :
         {HoldOutcome::kTimedOut, HoldOutcome::kFailed, HoldOutcome::kWithdrawn}) {
      FakeWorld world;
      world.gate.verdict.on_gate_timeout = c.action;
      world.gate.verdict.audit = c.audit;
      FakeClient client = udp(world);
      const AnswerRecord record = hold_ends(world, client, outcome);
      EXPECT_EQ(record.released, c.code == 0);
      EXPECT_EQ(record.hold.outcome, outcome);
      if (c.code >= 0) {
        EXPECT_EQ(code_of(world.await(client)), c.code);
      } else {
        world.run_for(milliseconds(20));
        EXPECT_FALSE(client.receive());
        EXPECT_EQ(world.proxy->counters().held_dropped, 1U);
      }
      const ProxyCounters counters = world.proxy->counters();
      EXPECT_EQ(counters.holds_timed_out, outcome == HoldOutcome::kTimedOut ? 1U : 0U);
      EXPECT_EQ(counters.holds_failed, outcome == HoldOutcome::kTimedOut ? 0U : 1U);
    }
  }
}

TEST_F(ProxyTest, AuditLetsAnUnmatchedNameThroughAndOpensNothing) {
  FakeWorld world;
  world.gate.verdict = {.may_resolve = false, .audit = true};
  FakeClient client = udp(world);
  client.send(query(1));
  EXPECT_EQ(code_of(world.await(client)), 0);
  EXPECT_TRUE(world.gate.held.empty());
  EXPECT_EQ(world.proxy->counters().audited, 1U);
  ASSERT_EQ(world.gate.denials.size(), 1U);
  EXPECT_TRUE(world.gate.denials[0].second.audited);
}

TEST_F(ProxyTest, AuditLetsAResolverThatMayNotBeAskedThroughAndItOpensNothing) {
  FakeWorld world;
  world.gate.verdict.audit = true;
  world.gate.resolver_allowed = false;
  FakeClient client = udp(world);
  client.send(query(1));
  EXPECT_EQ(code_of(world.await(client)), 0);
  EXPECT_TRUE(world.gate.held.empty());
  EXPECT_EQ(world.proxy->counters().audited, 1U);
  EXPECT_EQ(world.proxy->counters().resolvers_refused, 0U);
}

TEST_F(ProxyTest, HeldAnswersDoNotHoldUpOthers) {
  FakeWorld world;
  FakeClient client = udp(world);
  client.send(query(1, "a.test"));
  ASSERT_TRUE(world.run_until([&] { return world.gate.held.size() == 1; }));
  world.gate.open_at_once = true;
  const auto stuck = std::exchange(world.gate.held, {});
  client.send(query(2, "a.test"));
  const auto answer = world.await(client);
  ASSERT_TRUE(answer);
  EXPECT_EQ(message_id(*answer), 2);
}

TEST_F(ProxyTest, DropsAnswersThatDoNotBelongToTheQuery) {
  FakeWorld world;
  world.gate.open_at_once = true;
  Message asked;
  world.resolver.answer_with([&](const Message& forwarded) {
    asked = forwarded;
    return Messages{};
  });
  FakeClient client = udp(world);
  client.send(query(1));
  ASSERT_TRUE(world.run_until([&] { return !asked.empty(); }));

  const Message right = MessageBuilder::response_to(asked).a("a.test", 9, "192.0.2.66").bytes();
  world.resolver.spoof(right);  // the kernel drops it: another source address
  Message wrong_id = right;
  set_message_id(wrong_id, static_cast<std::uint16_t>(message_id(asked) + 1));
  world.resolver.send(wrong_id);
  world.resolver.send(MessageBuilder::response(message_id(asked))
                          .question("b.test", kTypeA)
                          .a("b.test", 9, "192.0.2.66")
                          .bytes());
  world.resolver.send(MessageBuilder::response(message_id(asked))
                          .question("A.test", kTypeA)  // not the spelling that was asked
                          .a("a.test", 9, "192.0.2.66")
                          .bytes());
  world.resolver.send(asked);  // no response
  world.resolver.send({1, 2, 3});
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().answers_wrong_question == 3; }));
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().answers_unmatched == 2; }));
  Message torn = right;
  torn.resize(torn.size() - 2);
  world.resolver.send(torn);
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().answers_malformed == 1; }));
  EXPECT_FALSE(client.receive());
  EXPECT_TRUE(world.gate.records.empty());

  world.resolver.send(right);
  EXPECT_EQ(code_of(world.await(client)), 0);
  world.resolver.send(right);  // once only
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().answers_unmatched == 3; }));
  EXPECT_FALSE(client.receive());
}

TEST_F(ProxyTest, AResolverThatIsSilentIsGivenUpWithoutAnAnswer) {
  ProxyOptions options;
  options.upstream_timeout = milliseconds(50);
  FakeWorld world(options);
  world.resolver.answer_with([](const Message&) { return Messages{}; });
  FakeClient client = udp(world);
  client.send(query(1));
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().upstream_timeouts == 1; }));
  EXPECT_EQ(world.proxy->sessions(), 0U);
  EXPECT_FALSE(client.receive());
}

TEST_F(ProxyTest, AServfailOfTheResolverIsPassedOnAndCounted) {
  FakeWorld world;
  world.resolver.answer_with([](const Message& asked) {
    return Messages{MessageBuilder::response_to(asked, kServfail).bytes()};
  });
  FakeClient client = udp(world);
  client.send(query(1));
  EXPECT_EQ(code_of(world.await(client)), kServfail);
  EXPECT_EQ(world.proxy->counters().answers_servfail, 1U);
  EXPECT_EQ(world.proxy->counters().upstream_failures, 0U);
}

TEST_F(ProxyTest, BeyondTheLimitOfHeldAnswersThereIsServfailWhateverThePolicySays) {
  for (const OnGateTimeout action :
       {OnGateTimeout::kServfail, OnGateTimeout::kRelease, OnGateTimeout::kDrop}) {
    FakeWorld world;
    world.gate.verdict.on_gate_timeout = action;
    FakeClient client = udp(world);
    EXPECT_FALSE(hold_ends(world, client, HoldOutcome::kOverloaded).released);
    EXPECT_EQ(code_of(world.await(client)), kServfail);
    EXPECT_EQ(world.proxy->counters().holds_overloaded, 1U);
  }
}

// With resolvers that never answer, each with a port of its own.
class SilentResolversTest : public ProxyTest {
 protected:
  static ProxyOptions options() {
    ProxyOptions options;
    options.max_upstream_sockets = 8;
    options.max_upstream_sockets_per_workload = 4;
    return options;
  }
  // A query of a workload to a resolver that nobody has asked so far; it is in work when this
  // returns.
  void ask_silent(WorkloadId workload) {
    silent_.push_back(std::make_unique<test::FakeResolver>(AF_INET));  // nobody polls it
    world_.flows.flow = {workload, silent_.back()->endpoint()};
    const std::uint64_t before = world_.proxy->counters().queries_udp;
    client_.send(query(static_cast<std::uint16_t>(silent_.size())));
    ASSERT_TRUE(world_.run_until([&] { return world_.proxy->counters().queries_udp > before; }));
  }
  std::optional<Message> ask(WorkloadId workload) {
    world_.flows.flow = {workload, world_.resolver.endpoint()};
    FakeClient client = udp(world_);
    client.send(query(1));
    return world_.await(client);
  }

  FakeWorld world_{options()};
  FakeClient client_ = udp(world_);
  std::vector<std::unique_ptr<test::FakeResolver>> silent_;
};

TEST_F(SilentResolversTest, AWorkloadThatAsksManyGetsServfailBeyondItsShare) {
  for (int i = 0; i < 4; ++i) ask_silent(1);
  EXPECT_EQ(world_.proxy->counters().upstream_limited, 0U);
  ask_silent(1);
  EXPECT_EQ(code_of(world_.await(client_)), kServfail);
  EXPECT_EQ(world_.proxy->counters().upstream_limited, 1U);
  world_.gate.open_at_once = true;
  EXPECT_EQ(code_of(ask(2)), 0) << "another workload has its own share";
}

TEST_F(SilentResolversTest, WhoeverHasTheMostMakesRoomWhenAllSocketsAreTaken) {
  for (int i = 0; i < 8; ++i) ask_silent(i < 4 ? 1 : 2);
  world_.gate.open_at_once = true;
  EXPECT_EQ(code_of(ask(3)), 0);
  EXPECT_EQ(code_of(world_.await(client_)), kServfail) << "the query that lost its socket";
  EXPECT_EQ(world_.proxy->counters().upstream_limited, 1U);
}

TEST_F(SilentResolversTest, AnIdleSocketMakesRoomForAQueryToAnotherResolver) {
  world_.gate.open_at_once = true;
  for (int i = 0; i < 40; ++i) ASSERT_EQ(code_of(ask(1)), 0);  // all four sockets of one resolver
  for (int i = 0; i < 3; ++i) ask_silent(1);
  EXPECT_EQ(code_of(ask(1)), 0) << "by a socket that is left";
  EXPECT_EQ(world_.proxy->counters().upstream_limited, 0U);
}

TEST_F(ProxyTest, SpreadsQueriesOverSeveralMarkedSockets) {
  FakeWorld world;
  world.gate.open_at_once = true;
  FakeClient client = udp(world);
  for (std::uint16_t id = 0; id < 100; ++id) {
    client.send(query(id));
    ASSERT_TRUE(world.await(client));
  }
  const std::set<std::uint16_t> ports(world.resolver.ports.begin(), world.resolver.ports.end());
  EXPECT_EQ(ports.size(), 4U);
  EXPECT_EQ(world.flows.marked.size(), 4U);
}

TEST_F(ProxyTest, ReplacesSocketsAfterSomeQueries) {
  FakeWorld world;
  world.gate.open_at_once = true;
  FakeClient client = udp(world);
  for (int i = 0; i < 4 * 2048 + 100; ++i) {
    client.send(query(static_cast<std::uint16_t>(i)));
    ASSERT_TRUE(world.await(client));
  }
  const std::set<std::uint16_t> ports(world.resolver.ports.begin(), world.resolver.ports.end());
  EXPECT_GT(ports.size(), 4U);
}

TEST_F(ProxyTest, ASocketThatCannotBeMarkedIsNotUsed) {
  FakeWorld world;
  world.flows.mark_error = std::make_error_code(std::errc::operation_not_permitted);
  FakeClient client = udp(world);
  client.send(query(1));
  EXPECT_EQ(code_of(world.await(client)), kServfail);
  FakeClient stream = tcp(world);
  stream.send(query(1));
  EXPECT_EQ(code_of(world.await(stream)), kServfail);
  EXPECT_TRUE(world.resolver.queries.empty());
  EXPECT_EQ(world.resolver.connections, 0U);
}

TEST_F(ProxyTest, DropsOversizedQueries) {
  FakeWorld world;
  FakeClient client = udp(world);
  Message large = query(1);
  large.resize(5000);
  client.send(large);
  ASSERT_TRUE(world.run_until([&] { return world.proxy->counters().oversized == 1; }));
  FakeClient stream = tcp(world);
  stream.send(large);
  ASSERT_TRUE(world.run_until([&] { return stream.closed(); }));
  EXPECT_EQ(world.proxy->counters().oversized, 2U);
}

TEST_F(ProxyTest, PassesTruncationOnAndTheRetryOverTcpGetsEverything) {
  FakeWorld world;
  world.gate.open_at_once = true;
  Message large;
  world.resolver.answer_with([&](const Message& asked) {
    MessageBuilder builder = MessageBuilder::response_to(asked);
    if (world.resolver.connections == 0) {
      Message cut = builder.bytes();
      cut[2] |= 0x02;
      return Messages{cut};
    }
    for (int i = 0; i < 2000; ++i)
      builder.a("a.test", 60, "10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250));
    return Messages{builder.bytes()};
  });
  FakeClient client = udp(world);
  client.send(query(1));
  const auto cut = world.await(client);
  ASSERT_TRUE(cut);
  EXPECT_TRUE((*cut)[2] & 0x02);
  FakeClient stream = tcp(world);
  stream.send(query(2));
  const auto whole = world.await(stream);
  ASSERT_TRUE(whole);
  EXPECT_GT(whole->size(), 40000U);
  EXPECT_EQ(world.gate.records.back().addresses, 2000U);
}

TEST_F(ProxyTest, LargeAnswersPassOverUdp) {
  FakeWorld world;
  world.gate.open_at_once = true;
  world.resolver.answer_with([](const Message& asked) {
    MessageBuilder builder = MessageBuilder::response_to(asked);
    for (int i = 0; i < 2500; ++i) builder.a("a.test", 60, "10.0.0." + std::to_string(i % 250));
    return Messages{builder.bytes()};
  });
  FakeClient client = udp(world);
  client.send(query(1));
  const auto answer = world.await(client);
  ASSERT_TRUE(answer);
  EXPECT_GT(answer->size(), 50000U);
}

TEST_F(ProxyTest, PipelinedTcpQueriesGetTheirOwnAnswersInAnyOrder) {
  FakeWorld world;
  world.gate.open_at_once = true;
  std::vector<Message> asked;
  world.resolver.answer_with([&](const Message& query_in) {
    asked.push_back(query_in);
    Messages answers;
    if (asked.size() == 50)  // all at once, the last one first
      for (auto it = asked.rbegin(); it != asked.rend(); ++it)
        answers.push_back(MessageBuilder::response_to(*it).a("a.test", 60, "192.0.2.1").bytes());
    return answers;
  });
  FakeClient stream = tcp(world);
  for (std::uint16_t id = 0; id < 50; ++id)
    stream.send(query(id, "n" + std::to_string(id) + ".test"));
  for (int i = 0; i < 50; ++i) {
    const auto answer = world.await(stream);
    ASSERT_TRUE(answer);
    const Message own =
        query(message_id(*answer), "n" + std::to_string(message_id(*answer)) + ".test");
    EXPECT_TRUE(answers_query(*answer, own, *parse_query(own)->question));
  }
  EXPECT_EQ(world.resolver.connections, 1U);
}

TEST_F(ProxyTest, ATcpClientIsReadFromOnlyWhileFewQueriesAreInWork) {
  ProxyOptions options;
  options.max_pipelined = 4;
  FakeWorld world(options);
  FakeClient stream = tcp(world);
  for (std::uint16_t id = 0; id < 20; ++id) stream.send(query(id));
  ASSERT_TRUE(world.run_until([&] { return world.gate.held.size() == 4; }));
  world.run_for(milliseconds(20));
  EXPECT_EQ(world.proxy->sessions(), 4U);
  EXPECT_EQ(world.resolver.queries.size(), 4U);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world.run_until([&] { return !world.gate.held.empty(); }));
    world.gate.finish(HoldOutcome::kOpened);
    ASSERT_TRUE(world.await(stream));
  }
}

TEST_F(ProxyTest, ATcpMessageMayComeInPieces) {
  FakeWorld world;
  world.gate.open_at_once = true;
  FakeClient stream = tcp(world);
  const Message whole = query(3);
  Message framed{0, static_cast<std::uint8_t>(whole.size())};
  framed.insert(framed.end(), whole.begin(), whole.end());
  for (const std::uint8_t byte : framed) {
    stream.send_raw(std::span(&byte, 1));
    world.run_for(milliseconds(1));
  }
  EXPECT_TRUE(world.await(stream));
}

TEST_F(ProxyTest, ATcpClientThatFinishedSendingGetsItsAnswersAndIsClosed) {
  FakeWorld world;
  FakeClient stream = tcp(world);
  stream.send(query(3));
  stream.finish_sending();
  ASSERT_TRUE(world.run_until([&] { return world.gate.held.size() == 1; }));
  world.run_for(milliseconds(20));
  EXPECT_FALSE(stream.closed());
  world.gate.finish(HoldOutcome::kOpened);
  EXPECT_TRUE(world.await(stream));
  EXPECT_TRUE(world.run_until([&] { return stream.closed(); }));
}

TEST_F(ProxyTest, AnIdleTcpClientIsClosed) {
  ProxyOptions options;
  options.tcp_idle_timeout = milliseconds(100);
  FakeWorld world(options);
  world.gate.open_at_once = true;
  FakeClient stream = tcp(world);
  stream.send(query(3));
  EXPECT_TRUE(world.await(stream));
  EXPECT_FALSE(stream.closed());
  EXPECT_TRUE(world.run_until([&] { return stream.closed(); }));
}

TEST_F(ProxyTest, AResolverMayCloseAnIdleConnectionWithoutLosingAQuery) {
  FakeWorld world;
  world.gate.open_at_once = true;
  FakeClient stream = tcp(world);
  stream.send(query(1));
  EXPECT_TRUE(world.await(stream));
  world.resolver.close_connections();
  stream.send(query(2));
  EXPECT_EQ(code_of(world.await(stream)), 0);
  EXPECT_EQ(world.resolver.connections, 2U);
}

TEST_F(ProxyTest, AResolverThatClosesUponEveryQueryGivesServfail) {
  FakeWorld world;
  world.resolver.answer_with([&](const Message&) { return Messages{}; });
  FakeClient stream = tcp(world);
  stream.send(query(1));
  ASSERT_TRUE(world.run_until([&] { return !world.resolver.queries.empty(); }));
  world.resolver.close_connections();
  EXPECT_EQ(code_of(world.await(stream)), kServfail);
}

TEST_F(ProxyTest, AClientThatGoesTakesItsQueriesAlong) {
  FakeWorld world;
  world.resolver.answer_with([](const Message&) { return Messages{}; });
  {
    FakeClient stream = tcp(world);
    stream.send_raw(std::vector<std::uint8_t>{0, 50, 1});
    stream.send_raw(std::vector<std::uint8_t>(49));
    stream.send(query(1));
    ASSERT_TRUE(world.run_until([&] { return world.proxy->sessions() == 1; }));
    stream.send_raw(std::vector<std::uint8_t>{255, 255});  // oversized: the proxy closes
    ASSERT_TRUE(world.run_until([&] { return stream.closed(); }));
  }
  EXPECT_TRUE(world.run_until([&] { return world.proxy->sessions() == 0; }));
}

TEST_F(ProxyTest, TcpConnectionsAreLimitedPerWorkload) {
  ProxyOptions options;
  options.max_tcp_connections_per_workload = 2;
  FakeWorld world(options);
  FakeClient first = tcp(world);
  FakeClient second = tcp(world);
  FakeClient third = tcp(world);
  ASSERT_TRUE(world.run_until([&] { return third.closed(); }));
  EXPECT_FALSE(first.closed());
  EXPECT_EQ(world.proxy->counters().tcp_rejected, 1U);
}

TEST_F(ProxyTest, ManyQueriesAtOnceAllGetTheirAnswers) {
  FakeWorld world;
  FakeClient client = udp(world);
  for (std::uint16_t id = 0; id < 500; ++id) {
    client.send(query(id));
    if (id % 50 == 49) world.run_for(milliseconds(2));
  }
  ASSERT_TRUE(world.run_until([&] { return world.gate.held.size() == 500; }));
  std::set<std::uint16_t> ids;
  while (ids.size() < 500) {
    // As many as the client's receive buffer takes.
    for (int i = 0; i < 50; ++i) world.gate.finish(HoldOutcome::kOpened);
    for (int i = 0; i < 50; ++i) {
      const auto answer = world.await(client);
      ASSERT_TRUE(answer);
      ids.insert(message_id(*answer));
    }
  }
}

}  // namespace
}  // namespace mapgate::dns
