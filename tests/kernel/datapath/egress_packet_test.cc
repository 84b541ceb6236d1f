// SPDX-License-Identifier: Apache-2.0
// Packet fixtures for the egress program, run by BPF_PROG_TEST_RUN: one row a packet, and what must
// become of it.
#include <arpa/inet.h>
#include <bpf/bpf.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

using test::Endpoint;
using Bytes = std::vector<std::uint8_t>;

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Bytes big_endian(std::uint16_t value) {
  return {static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value)};
}

Bytes ethernet(std::uint16_t type) {
  return Bytes(12, 0) + big_endian(type);
}

Bytes udp(std::uint16_t port) {
  return big_endian(40000) + big_endian(port) + Bytes{0, 8, 0, 0};
}
Bytes tcp(std::uint16_t port) {
  return big_endian(40000) + big_endian(port) + Bytes(16, 0);
}

Bytes ipv4(std::string_view to, std::uint8_t protocol, const Bytes& payload,
           std::uint16_t fragment = 0, std::uint8_t version_and_length = 0x45,
           const Bytes& options = {}) {
  const auto mapped = Endpoint(to, 0).mapped();
  const auto length = static_cast<std::uint16_t>(20 + options.size() + payload.size());
  return ethernet(0x0800) + Bytes{version_and_length, 0} + big_endian(length) + Bytes{0, 0} +
         big_endian(fragment) + Bytes{64, protocol, 0, 0, 192, 0, 2, 100} +
         Bytes(mapped.begin() + 12, mapped.end()) + options + payload;
}

Bytes ipv6(std::string_view to, std::uint8_t next_header, const Bytes& payload) {
  const auto from = Endpoint("2001:db8::100", 0).mapped();
  const auto destination = Endpoint(to, 0).mapped();
  return ethernet(0x86dd) + Bytes{0x60, 0, 0, 0} +
         big_endian(static_cast<std::uint16_t>(payload.size())) + Bytes{next_header, 64} +
         Bytes(from.begin(), from.end()) + Bytes(destination.begin(), destination.end()) + payload;
}

// An 8 byte extension header: next header, length 0, and for a routing header its type and segments
// left.
Bytes extension(std::uint8_t next_header, std::uint8_t segments_left = 0) {
  return {next_header, 0, 0, segments_left, 0, 0, 0, 0};
}

Bytes chain(std::size_t count, std::uint8_t last) {
  Bytes headers;
  for (std::size_t i = 0; i < count; ++i)
    headers = headers + extension(i + 1 < count ? std::uint8_t{IPPROTO_DSTOPTS} : last);
  return headers;
}

struct Case {
  std::string name;
  Bytes packet;
  int reason;  // 0: passes
};

std::vector<Case> cases() {
  const auto v4 = kIpv4World.allowed, v6 = kIpv6World.allowed;
  const Bytes authentication = Bytes{IPPROTO_UDP, 4} + Bytes(22, 0);  // (4 + 2) * 4 bytes
  return {
      {"Ipv4UdpAllowed", ipv4(v4, IPPROTO_UDP, udp(443)), 0},
      {"Ipv4TcpAllowed", ipv4(v4, IPPROTO_TCP, tcp(443)), 0},
      {"Ipv4OtherPort", ipv4(v4, IPPROTO_UDP, udp(444)), MG_REASON_PORT},
      {"Ipv4OtherAddress", ipv4(kIpv4World.other, IPPROTO_UDP, udp(443)), MG_REASON_ADDRESS},
      {"Ipv4OtherProtocol", ipv4(v4, IPPROTO_SCTP, udp(443)), MG_REASON_PORT},
      {"Ipv4ProtocolWithoutPorts", ipv4(v4, IPPROTO_GRE, Bytes(8, 0)), MG_REASON_PORT},
      {"Ipv4EchoAllowed", ipv4(v4, IPPROTO_ICMP, Bytes{8, 0, 0, 0, 0, 0, 0, 0}), 0},
      {"Ipv4RedirectDenied", ipv4(v4, IPPROTO_ICMP, Bytes{5, 0, 0, 0, 0, 0, 0, 0}), MG_REASON_PORT},
      {"Ipv4FirstFragment", ipv4(v4, IPPROTO_UDP, udp(443), 0x2000), MG_REASON_FRAGMENT},
      {"Ipv4LaterFragment", ipv4(v4, IPPROTO_UDP, udp(443), 0x00b9), MG_REASON_FRAGMENT},
      {"Ipv4DoNotFragment", ipv4(v4, IPPROTO_UDP, udp(443), 0x4000), 0},
      {"Ipv4NoTransportHeader", ipv4(v4, IPPROTO_UDP, {}), MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv4CutTransportHeader", ipv4(v4, IPPROTO_TCP, {1, 2, 3}), MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv4CutIcmp", ipv4(v4, IPPROTO_ICMP, {}), MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv4SourceRoute", ipv4(v4, IPPROTO_UDP, udp(443), 0, 0x47, {131, 7, 4, 10, 0, 0, 1, 0}),
       MG_REASON_SOURCE_ROUTE},
      {"Ipv4HeaderTooShort", ipv4(v4, IPPROTO_UDP, udp(443), 0, 0x44), MG_REASON_SOURCE_ROUTE},
      {"Ipv4WrongVersion", ipv4(v4, IPPROTO_UDP, udp(443), 0, 0x65), MG_REASON_MALFORMED},
      {"Ipv4UnsteeredDnsUdp", ipv4(v4, IPPROTO_UDP, udp(53)), MG_REASON_DNS_UNSTEERED},
      {"Ipv4UnsteeredDnsTcp", ipv4(v4, IPPROTO_TCP, tcp(53)), MG_REASON_DNS_UNSTEERED},
      {"Ipv4Loopback", ipv4("127.0.0.1", IPPROTO_UDP, udp(1)), MG_REASON_ADDRESS},
      {"Ipv6UdpAllowed", ipv6(v6, IPPROTO_UDP, udp(443)), 0},
      {"Ipv6TcpAllowed", ipv6(v6, IPPROTO_TCP, tcp(443)), 0},
      {"Ipv6OtherPort", ipv6(v6, IPPROTO_UDP, udp(444)), MG_REASON_PORT},
      {"Ipv6OtherAddress", ipv6(kIpv6World.other, IPPROTO_UDP, udp(443)), MG_REASON_ADDRESS},
      {"Ipv6EchoAllowed", ipv6(v6, IPPROTO_ICMPV6, Bytes{128, 0, 0, 0, 0, 0, 0, 0}), 0},
      {"Ipv6UnsteeredDns", ipv6(v6, IPPROTO_UDP, udp(53)), MG_REASON_DNS_UNSTEERED},
      {"Ipv6HopByHop", ipv6(v6, IPPROTO_HOPOPTS, extension(IPPROTO_UDP) + udp(443)), 0},
      {"Ipv6HopByHopOtherPort", ipv6(v6, IPPROTO_HOPOPTS, extension(IPPROTO_UDP) + udp(444)),
       MG_REASON_PORT},
      {"Ipv6HopByHopDns", ipv6(v6, IPPROTO_HOPOPTS, extension(IPPROTO_UDP) + udp(53)),
       MG_REASON_DNS_UNSTEERED},
      {"Ipv6TwoExtensions",
       ipv6(v6, IPPROTO_HOPOPTS, extension(IPPROTO_DSTOPTS) + extension(IPPROTO_TCP) + tcp(443)),
       0},
      {"Ipv6LongExtension",
       ipv6(v6, IPPROTO_DSTOPTS, Bytes{IPPROTO_UDP, 2} + Bytes(22, 0) + udp(443)), 0},
      {"Ipv6Authentication", ipv6(v6, IPPROTO_AH, authentication + udp(443)), 0},
      {"Ipv6RoutingDone", ipv6(v6, IPPROTO_ROUTING, extension(IPPROTO_UDP, 0) + udp(443)), 0},
      {"Ipv6RoutingAhead", ipv6(v6, IPPROTO_ROUTING, extension(IPPROTO_UDP, 1) + udp(443)),
       MG_REASON_SOURCE_ROUTE},
      {"Ipv6Fragment", ipv6(v6, IPPROTO_FRAGMENT, extension(IPPROTO_UDP) + udp(443)),
       MG_REASON_FRAGMENT},
      {"Ipv6FragmentBehindExtension",
       ipv6(v6, IPPROTO_DSTOPTS, extension(IPPROTO_FRAGMENT) + extension(IPPROTO_UDP) + udp(443)),
       MG_REASON_FRAGMENT},
      {"Ipv6NoTransportHeader", ipv6(v6, IPPROTO_UDP, {}), MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv6CutExtension", ipv6(v6, IPPROTO_HOPOPTS, {IPPROTO_UDP, 0}), MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv6ExtensionBeyondTheEnd",
       ipv6(v6, IPPROTO_HOPOPTS, Bytes{IPPROTO_UDP, 200} + Bytes(6, 0) + udp(443)),
       MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv6LongestChain", ipv6(v6, IPPROTO_DSTOPTS, chain(6, IPPROTO_UDP) + udp(443)), 0},
      {"Ipv6ChainTooLong", ipv6(v6, IPPROTO_DSTOPTS, chain(7, IPPROTO_UDP) + udp(443)),
       MG_REASON_TRANSPORT_HIDDEN},
      {"Ipv6NoNextHeader", ipv6(v6, IPPROTO_NONE, {}), MG_REASON_PORT},
      {"NeitherFamily", ethernet(0x0806) + Bytes(46, 0), MG_REASON_MALFORMED},
  };
}

class EgressPacketTest : public DatapathTest {
 protected:
  void SetUp() override {
    DatapathTest::SetUp();
    if (!datapath_) return;
    // A second set of programs, which take themselves for this workload's.
    Options test_options = options();
    test_options.bpffs = bpffs_->path() / "test";
    test_options.test_workload = kWorkload;
    auto opened = Datapath::open(test_options);
    ASSERT_TRUE(opened) << opened.error().message();
    datapath_.emplace(std::move(*opened));
    set_mode(MG_MODE_ENFORCE);
    for (const World& world : {kIpv4World, kIpv6World}) learn(world.allowed, kFirstSet);
    for (int protocol : {IPPROTO_TCP, IPPROTO_UDP}) add_ports(protocol, 443, kFirstSet);
    add_ports(IPPROTO_ICMP, 8, kFirstSet);
    add_ports(IPPROTO_ICMPV6, 128, kFirstSet);
  }

  // What the program returns: 1 passes, 0 drops.
  std::uint32_t run(const Bytes& packet) {
    bpf_test_run_opts options{};
    options.sz = sizeof options;
    options.data_in = packet.data();
    options.data_size_in = static_cast<std::uint32_t>(packet.size());
    options.repeat = 1;
    EXPECT_EQ(bpf_prog_test_run_opts(datapath_->program_fd("mg_egress"), &options), 0) << errno;
    return options.retval;
  }
};

TEST_F(EgressPacketTest, EveryFixtureHasItsVerdictAndReason) {
  for (const Case& fixture : cases()) {
    SCOPED_TRACE(fixture.name);
    (void)denials();
    EXPECT_EQ(run(fixture.packet), fixture.reason == 0 ? 1u : 0u);
    const auto events = denials();
    ASSERT_EQ(events.size(), fixture.reason == 0 ? 0u : 1u);
    if (!events.empty()) {
      EXPECT_EQ(events.front().reason, fixture.reason);
      EXPECT_EQ(events.front().hook, MG_HOOK_PACKET);
    }
  }
}

TEST_F(EgressPacketTest, EveryTruncationOfAnAllowedPacketIsHandled) {
  set_mode(MG_MODE_ENFORCE);
  for (const Bytes& whole :
       {ipv4(kIpv4World.allowed, IPPROTO_UDP, udp(443)),
        ipv6(kIpv6World.allowed, IPPROTO_HOPOPTS, extension(IPPROTO_UDP) + udp(443))}) {
    // Ports are the first 4 of the 8 bytes of a UDP header.
    const std::size_t needed = whole.size() - 4;
    for (std::size_t size = 14 + 20; size <= whole.size(); ++size) {
      if (whole[12] == 0x86 && size < 14 + 40) continue;  // the kernel refuses to run these
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_EQ(run(cut), size >= needed ? 1u : 0u) << size << " of " << whole.size();
    }
  }
}

TEST_F(EgressPacketTest, AuditModeLetsEveryFixturePass) {
  set_mode(MG_MODE_AUDIT);
  for (const Case& fixture : cases()) EXPECT_EQ(run(fixture.packet), 1u) << fixture.name;
}

TEST_F(EgressPacketTest, UnconfiguredWorkloadDropsEveryFixture) {
  set_mode(MG_MODE_UNCONFIGURED);
  for (const Case& fixture : cases()) EXPECT_EQ(run(fixture.packet), 0u) << fixture.name;
}

}  // namespace
}  // namespace mapgate::datapath
