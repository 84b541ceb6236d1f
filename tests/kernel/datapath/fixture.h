// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/datapath/datapath.h"
#include "agent/unique_fd.h"
#include "tests/support/child.h"
#include "tests/support/network.h"
#include "tests/support/temporary_bpffs.h"
#include "tests/support/temporary_cgroup.h"

namespace mapgate::datapath {

// Each family's addresses, all of them on the loopback interface of the test's network namespace.
// What the tests call forbidden is reachable too: only the programs stand in between.
struct World {
  std::string_view allowed, other, forbidden, resolver, second_resolver, loopback, unspecified;
};
inline constexpr World kIpv4World{"192.0.2.1",    "192.0.2.2", "198.51.100.1", "203.0.113.53",
                                  "203.0.113.54", "127.0.0.1", "0.0.0.0"};
inline constexpr World kIpv6World{
    "2001:db8::1", "2001:db8::2", "2001:db8:ffff::1", "2001:db8:53::1", "2001:db8:53::2",
    "::1",         "::"};

// Bits of port sets.
inline constexpr std::uint64_t kFirstSet = 1;
inline constexpr std::uint64_t kSecondSet = 2;

// A workload in a cgroup and network namespace of its own, enforced by a datapath with pins of its
// own.
class DatapathTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWorkload = 7;

  void SetUp() override;

  [[nodiscard]] Options options() const;

  void set_mode(std::uint32_t mode, std::uint32_t flags = 0, std::uint32_t workload = kWorkload);
  void learn(std::string_view address, std::uint64_t port_sets, std::uint32_t workload = kWorkload);
  void forget(std::string_view address, std::uint32_t workload = kWorkload);
  // `bits` counts as in CIDR notation of the address' family.
  void add_prefix(std::string_view address, std::uint32_t bits, std::uint64_t port_sets);
  // `bits` of the port are compared: 16 for one port, fewer for an aligned block.
  void add_ports(int protocol, std::uint16_t port, std::uint64_t port_sets, std::uint32_t bits = 16,
                 std::uint32_t workload = kWorkload);
  void add_all_ports(std::uint64_t port_sets, std::uint32_t workload = kWorkload);

  // Runs the function in a process of the workload; returns what it returns, an errno.
  [[nodiscard]] int in_workload(const std::function<int()>& function);
  [[nodiscard]] test::Child start_in_workload(const std::function<int()>& function);

  [[nodiscard]] Counters counters() { return datapath_->counters(kWorkload).value(); }
  [[nodiscard]] std::vector<mg_denial> denials();

  test::TemporaryCgroup cgroup_;
  std::optional<test::TemporaryBpffsDirectory> bpffs_;
  std::optional<test::NetworkNamespace> network_;
  NetworkCookie network_cookie_ = kUnknownNetwork;  // of network_
  std::optional<Datapath> datapath_;
};

// A datapath whose workload may send to kIpv4World.allowed, and a server that would take what comes
// from it at every address.
class EnforcedWorkloadTest : public DatapathTest {
 protected:
  void SetUp() override;

  // In the workload: 0 or the errno.
  [[nodiscard]] int send_to(std::string_view address);
  void expect_enforced();
  void reopen(const Options& with);
  void reopen() { reopen(options()); }

  UniqueFd server_;
  std::uint16_t port_ = 0;  // the server's
};

[[nodiscard]] inline const World& world_of(int family) {
  return family == AF_INET ? kIpv4World : kIpv6World;
}

// The same test for IPv4 and IPv6.
class FamilyTest : public DatapathTest, public ::testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] const World& world() const { return world_of(GetParam()); }
};

inline std::string family_name(const ::testing::TestParamInfo<int>& info) {
  return info.param == AF_INET ? "Ipv4" : "Ipv6";
}

// What a process of a workload does; each returns 0 or the errno of the call that failed.
int tcp_connect(const test::Endpoint& to);
int udp_send(const test::Endpoint& to);              // sendto() on an unconnected socket
int udp_connect(const test::Endpoint& to);           // connect() only
int udp_connect_and_send(const test::Endpoint& to);  // connect() and send()
int send_raw(int family, int protocol, const test::Endpoint& to, std::string_view bytes);

// Of a map.
bpf_map_info info_of(int fd);

// Did a datagram arrive at this socket? Loopback delivers before the sender's call returns.
bool received(int socket);

}  // namespace mapgate::datapath
