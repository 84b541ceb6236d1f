// SPDX-License-Identifier: Apache-2.0
#include "tests/kernel/datapath/fixture.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "tests/support/requirements.h"

namespace mapgate::datapath {
namespace {

using test::Endpoint;

template <typename Key, typename Value>
void write_row(int map, const Key& key, const Value& value) {
  ASSERT_EQ(bpf_map_update_elem(map, &key, &value, BPF_ANY), 0) << errno;
}

UniqueFd datagram_socket(const Endpoint& to) {
  return UniqueFd(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

}  // namespace

void DatapathTest::SetUp() {
  const std::string missing = test::missing_for_bpf();
  MAPGATE_REQUIRE(missing.empty(), missing);
  ASSERT_TRUE(cgroup_.valid());
  bpffs_.emplace();
  std::vector<std::string> addresses;
  for (const World& world : {kIpv4World, kIpv6World})
    for (std::string_view address :
         {world.allowed, world.other, world.forbidden, world.resolver, world.second_resolver})
      addresses.emplace_back(address);
  network_.emplace(addresses);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto cookie = network_cookie(socket.get());
  ASSERT_TRUE(cookie) << cookie.error().message();
  network_cookie_ = *cookie;
  auto datapath = Datapath::open(options());
  ASSERT_TRUE(datapath) << datapath.error().message();
  datapath_.emplace(std::move(*datapath));
  auto attached = datapath_->attach(cgroup_.directory(), kWorkload);
  ASSERT_TRUE(attached) << attached.error().message();
  set_mode(MG_MODE_ENFORCE);
}

Options DatapathTest::options() const {
  Options options;
  options.bpffs = bpffs_->path() / "mapgate";
  options.sizes.addresses = 1024;
  options.sizes.prefixes = 1024;
  options.sizes.ports = 1024;
  options.max_dns_flows = 1024;
  options.max_udp_peers = 1024;
  return options;
}

void DatapathTest::set_mode(std::uint32_t mode, std::uint32_t flags, std::uint32_t workload) {
  write_row(datapath_->map_fd(kWorkloadsMap), workload, mg_workload{mode, flags});
}

void DatapathTest::learn(std::string_view address, std::uint64_t port_sets,
                         std::uint32_t workload) {
  mg_address_key key{};
  key.workload = workload;
  std::ranges::copy(Endpoint(address, 0).mapped(), key.address);
  write_row(datapath_->map_fd(kAddressesMap), key, mg_port_sets{port_sets});
}

void DatapathTest::forget(std::string_view address, std::uint32_t workload) {
  mg_address_key key{};
  key.workload = workload;
  std::ranges::copy(Endpoint(address, 0).mapped(), key.address);
  ASSERT_EQ(bpf_map_delete_elem(datapath_->map_fd(kAddressesMap), &key), 0);
}

void DatapathTest::add_prefix(std::string_view address, std::uint32_t bits,
                              std::uint64_t port_sets) {
  const Endpoint endpoint(address, 0);
  mg_prefix_key key{};
  key.prefixlen = 32 + (endpoint.family() == AF_INET ? 96 : 0) + bits;
  key.workload = kWorkload;
  std::ranges::copy(endpoint.mapped(), key.address);
  write_row(datapath_->map_fd(kPrefixesMap), key, mg_port_sets{port_sets});
}

void DatapathTest::add_ports(int protocol, std::uint16_t port, std::uint64_t port_sets,
                             std::uint32_t bits, std::uint32_t workload) {
  mg_port_key key{};
  key.prefixlen = 32 + 16 + bits;
  key.workload = workload;
  key.protocol = htons(static_cast<std::uint16_t>(protocol));
  key.port = htons(port);
  write_row(datapath_->map_fd(kPortsMap), key, mg_port_sets{port_sets});
}

void DatapathTest::add_all_ports(std::uint64_t port_sets, std::uint32_t workload) {
  mg_port_key key{};
  key.prefixlen = 32;
  key.workload = workload;
  write_row(datapath_->map_fd(kPortsMap), key, mg_port_sets{port_sets});
}

test::Child DatapathTest::start_in_workload(const std::function<int()>& function) {
  return test::Child([&] {
    if (int error = cgroup_.enter()) return error;
    return function();
  });
}

int DatapathTest::in_workload(const std::function<int()>& function) {
  return start_in_workload(function).wait();
}

std::vector<mg_denial> DatapathTest::denials() {
  std::vector<mg_denial> result;
  datapath_->consume_denials([&](const mg_denial& denial) { result.push_back(denial); });
  return result;
}

void EnforcedWorkloadTest::SetUp() {
  DatapathTest::SetUp();
  if (!datapath_) return;
  server_ = test::serve(SOCK_DGRAM, Endpoint("0.0.0.0", 0));
  port_ = Endpoint::local_of(server_.get()).port();
  learn(kIpv4World.allowed, kFirstSet);
  add_all_ports(kFirstSet);
}

int EnforcedWorkloadTest::send_to(std::string_view address) {
  return in_workload([&] { return udp_send({address, port_}); });
}

void EnforcedWorkloadTest::expect_enforced() {
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  EXPECT_EQ(send_to(kIpv4World.forbidden), EPERM);
}

void EnforcedWorkloadTest::reopen(const Options& with) {
  datapath_.reset();
  auto opened = Datapath::open(with);
  ASSERT_TRUE(opened) << opened.error().message();
  datapath_.emplace(std::move(*opened));
}

int tcp_connect(const Endpoint& to) {
  UniqueFd socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), to.address(), to.size()) == 0 ? 0 : errno;
}

int udp_send(const Endpoint& to) {
  UniqueFd socket = datagram_socket(to);
  return ::sendto(socket.get(), "x", 1, 0, to.address(), to.size()) == 1 ? 0 : errno;
}

int udp_connect(const Endpoint& to) {
  UniqueFd socket = datagram_socket(to);
  return ::connect(socket.get(), to.address(), to.size()) == 0 ? 0 : errno;
}

int udp_connect_and_send(const Endpoint& to) {
  UniqueFd socket = datagram_socket(to);
  if (::connect(socket.get(), to.address(), to.size()) != 0) return errno;
  return ::send(socket.get(), "x", 1, 0) == 1 ? 0 : errno;
}

int send_raw(int family, int protocol, const Endpoint& to, std::string_view bytes) {
  UniqueFd socket(::socket(family, SOCK_RAW | SOCK_CLOEXEC, protocol));
  if (!socket) return errno;
  return ::sendto(socket.get(), bytes.data(), bytes.size(), 0, to.address(), to.size()) < 0 ? errno
                                                                                            : 0;
}

bpf_map_info info_of(int fd) {
  bpf_map_info info{};
  std::uint32_t size = sizeof info;
  EXPECT_EQ(bpf_obj_get_info_by_fd(fd, &info, &size), 0);
  return info;
}

bool received(int socket) {
  std::array<char, 64> buffer{};
  return ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT) >= 0;
}

}  // namespace mapgate::datapath
