// SPDX-License-Identifier: Apache-2.0
// What the rows of a workload open, and what stays closed.
#include <algorithm>
#include <cerrno>

#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

using test::Endpoint;
using test::serve;

class RulesTest : public FamilyTest {
 protected:
  // A listener at every address, on a port that no other test run uses.
  void SetUp() override {
    FamilyTest::SetUp();
    if (!datapath_) return;
    tcp_ = serve(SOCK_STREAM, Endpoint(world().unspecified, 0));
    tcp_port_ = Endpoint::local_of(tcp_.get()).port();
    udp_ = serve(SOCK_DGRAM, Endpoint(world().unspecified, 0));
    udp_port_ = Endpoint::local_of(udp_.get()).port();
  }

  int connect_to(std::string_view address) {
    return in_workload([&] { return tcp_connect({address, tcp_port_}); });
  }
  int send_to(std::string_view address) {
    return in_workload([&] { return udp_send({address, udp_port_}); });
  }

  UniqueFd tcp_, udp_;
  std::uint16_t tcp_port_ = 0;
  std::uint16_t udp_port_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Family, RulesTest, ::testing::Values(AF_INET, AF_INET6), family_name);

TEST_P(RulesTest, LearnedAddressWithItsPortConnects) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_TCP, tcp_port_, kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
  EXPECT_EQ(counters().denied_connects, 0u);
}

TEST_P(RulesTest, AddressWithoutRuleFailsWithEperm) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().forbidden), EPERM);
  EXPECT_EQ(send_to(world().forbidden), EPERM);
  EXPECT_FALSE(received(udp_.get()));
  EXPECT_EQ(counters().denied_connects, 1u);
  EXPECT_EQ(counters().denied_sends, 1u);
}

TEST_P(RulesTest, OtherPortOrProtocolOfAnAllowedAddressFailsWithEperm) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_TCP, tcp_port_, kFirstSet);
  EXPECT_EQ(in_workload([&] {
              return tcp_connect({world().allowed, static_cast<std::uint16_t>(tcp_port_ ^ 1)});
            }),
            EPERM);
  EXPECT_EQ(in_workload([&] { return udp_send({world().allowed, tcp_port_}); }), EPERM);
}

TEST_P(RulesTest, AddressAndPortOfDifferentRulesDoNotMatch) {
  learn(world().allowed, kFirstSet);
  learn(world().other, kSecondSet);
  add_ports(IPPROTO_TCP, tcp_port_, kSecondSet);
  EXPECT_EQ(connect_to(world().allowed), EPERM);
  EXPECT_EQ(connect_to(world().other), 0);
}

TEST_P(RulesTest, RowsOfAnotherWorkloadDoNotMatch) {
  learn(world().allowed, kFirstSet, kWorkload + 1);
  add_all_ports(kFirstSet);
  add_all_ports(kFirstSet, kWorkload + 1);
  EXPECT_EQ(connect_to(world().allowed), EPERM);
}

TEST_P(RulesTest, RevokedAddressIsRefusedAgain) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
  forget(world().allowed);
  EXPECT_EQ(connect_to(world().allowed), EPERM);
}

TEST_P(RulesTest, PrefixAllowsAndItsLongerExceptionDenies) {
  const bool ipv4 = GetParam() == AF_INET;
  add_prefix(ipv4 ? "192.0.2.0" : "2001:db8::", ipv4 ? 24 : 112, kFirstSet);
  add_prefix(world().other, ipv4 ? 32 : 128, 0);
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
  EXPECT_EQ(connect_to(world().other), EPERM);
  EXPECT_EQ(connect_to(world().forbidden), EPERM);
}

TEST_P(RulesTest, LearnedAddressInsideAnExceptionConnects) {
  const bool ipv4 = GetParam() == AF_INET;
  add_prefix(ipv4 ? "192.0.2.0" : "2001:db8::", ipv4 ? 24 : 112, 0);
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
  EXPECT_EQ(connect_to(world().other), EPERM);
}

TEST_P(RulesTest, LearnedPortSetsDoNotHideThoseOfThePrefix) {
  const bool ipv4 = GetParam() == AF_INET;
  learn(world().allowed, kSecondSet);
  add_prefix(world().allowed, ipv4 ? 32 : 128, kFirstSet);
  add_ports(IPPROTO_TCP, tcp_port_, kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
}

TEST_P(RulesTest, PrefixOfEveryAddressOfOneFamilyLeavesTheOtherClosed) {
  const bool ipv4 = GetParam() == AF_INET;
  if (ipv4)
    add_prefix("0.0.0.0", 0, kFirstSet);
  else
    add_prefix("2000::", 3, kFirstSet);
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().allowed), 0);
  EXPECT_EQ(in_workload([&] {
              return udp_send({(ipv4 ? kIpv6World : kIpv4World).allowed, udp_port_});
            }),
            EPERM);
}

TEST_P(RulesTest, PortRangeMatchesFromItsFirstToItsLastPort) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_UDP, 40000, kFirstSet, 14);  // 40000..40003
  for (std::uint16_t port : std::initializer_list<std::uint16_t>{40000, 40003})
    EXPECT_EQ(in_workload([&] { return udp_send({world().allowed, port}); }), 0) << port;
  for (std::uint16_t port : std::initializer_list<std::uint16_t>{39999, 40004})
    EXPECT_EQ(in_workload([&] { return udp_send({world().allowed, port}); }), EPERM) << port;
}

TEST_P(RulesTest, DatagramsPassConnectedOrNot) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_UDP, udp_port_, kFirstSet);
  EXPECT_EQ(send_to(world().allowed), 0);
  EXPECT_TRUE(received(udp_.get()));
  EXPECT_EQ(in_workload([&] { return udp_connect_and_send({world().allowed, udp_port_}); }), 0);
  EXPECT_TRUE(received(udp_.get()));
}

// getaddrinfo() connects datagram sockets to learn the source address (RFC 6724); no packet leaves
// by that.
TEST_P(RulesTest, DatagramConnectPassesOnAnyPortOfAnAllowedAddressButItsPacketsAreJudged) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_TCP, 443, kFirstSet);
  EXPECT_EQ(in_workload([&] { return udp_connect({world().allowed, udp_port_}); }), 0);
  EXPECT_EQ(in_workload([&] { return udp_connect_and_send({world().allowed, udp_port_}); }), EPERM);
  EXPECT_FALSE(received(udp_.get()));
  EXPECT_EQ(in_workload([&] { return udp_connect({world().forbidden, udp_port_}); }), EPERM);
  EXPECT_EQ(counters().denied_packets, 1u);
}

TEST_P(RulesTest, IcmpIsJudgedByItsType) {
  const bool ipv4 = GetParam() == AF_INET;
  const int protocol = ipv4 ? int{IPPROTO_ICMP} : int{IPPROTO_ICMPV6};
  const std::string echo = std::string(1, static_cast<char>(ipv4 ? 8 : 128)) + std::string(7, '\0');
  const std::string other =
      std::string(1, static_cast<char>(ipv4 ? 13 : 135)) + std::string(7, '\0');
  learn(world().allowed, kFirstSet);
  add_ports(protocol, ipv4 ? 8 : 128, kFirstSet);
  const auto send = [&](std::string_view to, const std::string& message) {
    return in_workload([&] { return send_raw(GetParam(), protocol, {to, 0}, message); });
  };
  EXPECT_EQ(send(world().allowed, echo), 0);
  EXPECT_EQ(send(world().allowed, other), EPERM);
  EXPECT_EQ(send(world().forbidden, echo), EPERM);
}

TEST_P(RulesTest, LoopbackIsAllowedByFlagOnly) {
  EXPECT_EQ(connect_to(world().loopback), EPERM);
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  EXPECT_EQ(connect_to(world().loopback), 0);
  EXPECT_EQ(send_to(world().loopback), 0);
  EXPECT_EQ(connect_to(world().forbidden), EPERM);
}

TEST_P(RulesTest, EncryptedDnsOnLoopbackNeedsARule) {
  const auto connect_tls = [&] {
    return in_workload([&] { return tcp_connect({world().loopback, 853}); });
  };
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  EXPECT_EQ(connect_tls(), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_send({world().loopback, 853}); }), EPERM);
  add_prefix(world().loopback, GetParam() == AF_INET ? 32 : 128, kFirstSet);
  add_ports(IPPROTO_TCP, 853, kFirstSet);
  EXPECT_EQ(connect_tls(), ECONNREFUSED) << "nobody listens there";
}

TEST_P(RulesTest, UnspecifiedAddressIsLoopback) {
  add_all_ports(kFirstSet);
  EXPECT_EQ(connect_to(world().unspecified), EPERM);
  EXPECT_EQ(send_to(world().unspecified), EPERM);
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  EXPECT_EQ(connect_to(world().unspecified), 0);
  EXPECT_EQ(send_to(world().unspecified), 0);
}

TEST_P(RulesTest, UnconfiguredWorkloadDeniesEverything) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  set_mode(MG_MODE_UNCONFIGURED, MG_WORKLOAD_ALLOW_LOOPBACK);
  EXPECT_EQ(connect_to(world().allowed), EPERM);
  EXPECT_EQ(send_to(world().loopback), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_send({world().resolver, 53}); }), EPERM);
}

TEST_P(RulesTest, AuditModeNeverDeniesButCountsAndReports) {
  set_mode(MG_MODE_AUDIT);
  EXPECT_EQ(connect_to(world().forbidden), 0);
  EXPECT_EQ(send_to(world().forbidden), 0);
  EXPECT_TRUE(received(udp_.get()));
  EXPECT_EQ(in_workload([&] { return udp_send({world().resolver, 53}); }), 0);
  EXPECT_GE(counters().audited, 3u);
  EXPECT_EQ(counters().denied_connects + counters().denied_sends + counters().denied_packets, 0u);
  const auto events = denials();
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(
      std::ranges::all_of(events, [](const mg_denial& event) { return event.audited == 1; }));
}

TEST_P(RulesTest, DenialSaysWhoWhatAndWhy) {
  EXPECT_EQ(connect_to(world().forbidden), EPERM);
  const auto events = denials();
  ASSERT_EQ(events.size(), 1u);
  const mg_denial& event = events.front();
  EXPECT_EQ(event.workload, kWorkload);
  EXPECT_NE(event.pid, 0u);
  EXPECT_TRUE(std::ranges::equal(event.address, Endpoint(world().forbidden, 0).mapped()));
  EXPECT_EQ(ntohs(event.port), tcp_port_);
  EXPECT_EQ(event.protocol, IPPROTO_TCP);
  EXPECT_EQ(event.hook, MG_HOOK_CONNECT);
  EXPECT_EQ(event.reason, MG_REASON_ADDRESS);
  EXPECT_EQ(event.audited, 0);
}

TEST_P(RulesTest, DenialsBeyondTheRateLimitAreCounted) {
  constexpr unsigned kTries = 1000;
  EXPECT_EQ(in_workload([&] {
              for (unsigned i = 0; i < kTries; ++i)
                if (int error = udp_send({world().forbidden, udp_port_}); error != EPERM)
                  return error;
              return 0;
            }),
            0);
  const auto events = denials();
  EXPECT_GE(events.size(), 100u);
  EXPECT_LT(events.size(), kTries);
  EXPECT_EQ(counters().denied_sends, kTries);
  EXPECT_EQ(counters().events_dropped, kTries - events.size());
}

TEST_P(RulesTest, NestedWorkloadNeedsTheConsentOfBoth) {
  constexpr std::uint32_t kInner = kWorkload + 1;
  test::TemporaryCgroup inner(cgroup_.path());
  ASSERT_TRUE(datapath_->attach(inner.directory(), kInner));
  set_mode(MG_MODE_ENFORCE, 0, kInner);
  const auto connect_from_inner = [&](std::string_view address) {
    return test::run_in_child([&] {
      if (int error = inner.enter()) return error;
      return tcp_connect({address, tcp_port_});
    });
  };
  learn(world().allowed, kFirstSet);
  learn(world().allowed, kFirstSet, kInner);
  learn(world().other, kFirstSet, kInner);
  add_all_ports(kFirstSet);
  add_all_ports(kFirstSet, kInner);
  EXPECT_EQ(connect_from_inner(world().allowed), 0);
  EXPECT_EQ(connect_from_inner(world().other), EPERM);
  EXPECT_EQ(datapath_->counters(kInner)->denied_connects, 0u);
  EXPECT_EQ(counters().denied_connects, 1u);
  // Each counts a call once.
  EXPECT_EQ(connect_from_inner(world().forbidden), EPERM);
  EXPECT_EQ(datapath_->counters(kInner)->denied_connects, 1u);
  EXPECT_EQ(counters().denied_connects, 2u);
}

}  // namespace
}  // namespace mapgate::datapath
