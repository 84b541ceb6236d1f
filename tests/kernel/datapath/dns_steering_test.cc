// SPDX-License-Identifier: Apache-2.0
// DNS goes to the proxy without the application noticing, and by no other way.
#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

using test::Endpoint;
using test::serve;

// What a proxy has: a UDP socket for each slot, and a TCP listener. It is in no workload.
class FakeProxy {
 public:
  explicit FakeProxy(std::string_view loopback) : tcp_(serve(SOCK_STREAM, Endpoint(loopback, 0))) {
    for (int i = 0; i < MG_DNS_SLOTS; ++i) udp_.push_back(serve(SOCK_DGRAM, Endpoint(loopback, 0)));
  }

  struct Query {
    std::uint32_t slot = MG_DNS_SLOTS;
    Endpoint client;
    std::string payload;
  };

  // The next query on any slot; slot MG_DNS_SLOTS if none comes in time.
  Query receive(std::chrono::milliseconds timeout = std::chrono::seconds(2)) {
    std::vector<pollfd> ready;
    for (const UniqueFd& socket : udp_) ready.push_back({socket.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), static_cast<int>(timeout.count())) <= 0) return {};
    for (std::uint32_t slot = 0; slot < udp_.size(); ++slot) {
      if ((ready[slot].revents & POLLIN) == 0) continue;
      Query query;
      query.slot = slot;
      std::array<char, 64> buffer{};
      query.client = Endpoint::local_of(udp_[slot].get());
      socklen_t size = query.client.size();
      const ssize_t length = ::recvfrom(udp_[slot].get(), buffer.data(), buffer.size(), 0,
                                        query.client.address(), &size);
      if (length > 0) query.payload.assign(buffer.data(), static_cast<std::size_t>(length));
      return query;
    }
    return {};
  }

  void answer(const Query& query) {
    const std::string text = "re:" + query.payload;
    ASSERT_GT(::sendto(udp_[query.slot].get(), text.data(), text.size(), 0, query.client.address(),
                       query.client.size()),
              0);
  }

  [[nodiscard]] std::uint16_t udp_port(std::size_t slot) const {
    return Endpoint::local_of(udp_[slot].get()).port();
  }
  [[nodiscard]] std::uint16_t tcp_port() const { return Endpoint::local_of(tcp_.get()).port(); }
  [[nodiscard]] int listener() const { return tcp_.get(); }

 private:
  UniqueFd tcp_;
  std::vector<UniqueFd> udp_;
};

// In the client: sends, and waits for the answer that names the same resolver. 0, or an errno.
int ask(int socket, const Endpoint& resolver, const std::string& question) {
  if (::sendto(socket, question.data(), question.size(), 0, resolver.address(), resolver.size()) <
      0)
    return errno;
  std::array<char, 64> buffer{};
  Endpoint from = resolver;
  socklen_t size = from.size();
  const ssize_t length = ::recvfrom(socket, buffer.data(), buffer.size(), 0, from.address(), &size);
  if (length < 0) return errno;
  if (std::string(buffer.data(), static_cast<std::size_t>(length)) != "re:" + question)
    return EBADMSG;
  return from.text() == resolver.text() ? 0 : EADDRNOTAVAIL;
}

// A datapath that steers to fake proxies.
class SteeringTest : public DatapathTest {
 protected:
  void SetUp() override {
    DatapathTest::SetUp();
    if (!datapath_) return;
    proxy4_.emplace("127.0.0.1");
    proxy6_.emplace("::1");
    ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, ports()));
  }

  [[nodiscard]] ProxyPorts ports() const {
    ProxyPorts result;
    for (std::size_t slot = 0; slot < MG_DNS_SLOTS; ++slot) {
      result.udp4[slot] = proxy4_->udp_port(slot);
      result.udp6[slot] = proxy6_->udp_port(slot);
    }
    result.tcp4 = proxy4_->tcp_port();
    result.tcp6 = proxy6_->tcp_port();
    return result;
  }

  [[nodiscard]] static UniqueFd client_socket(int family, int type) {
    UniqueFd socket(::socket(family, type | SOCK_CLOEXEC, 0));
    const timeval limit{.tv_sec = 3, .tv_usec = 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return socket;
  }

  void expect_flow(const FakeProxy::Query& query, std::string_view resolver) {
    ASSERT_LT(query.slot, static_cast<std::uint32_t>(MG_DNS_SLOTS)) << "no query came";
    const auto flow = datapath_->lookup_flow(network_cookie_, IPPROTO_UDP, query.slot,
                                             query.client.mapped(), query.client.port());
    ASSERT_TRUE(flow) << query.client.text();
    EXPECT_EQ(flow->workload, kWorkload);
    EXPECT_EQ(flow->resolver, Endpoint(resolver, 53).mapped());
    EXPECT_EQ(flow->port, 53);
    EXPECT_NE(flow->cookie, 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - flow->last_sent, std::chrono::seconds(2));
  }

  std::optional<FakeProxy> proxy4_, proxy6_;
};

class DnsSteeringTest : public SteeringTest, public ::testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] const World& world() const { return world_of(GetParam()); }
  FakeProxy& proxy() { return GetParam() == AF_INET ? *proxy4_ : *proxy6_; }
};

INSTANTIATE_TEST_SUITE_P(Family, DnsSteeringTest, ::testing::Values(AF_INET, AF_INET6),
                         family_name);

TEST_P(DnsSteeringTest, UnconnectedQueryReachesTheProxyAndItsAnswerShowsTheResolver) {
  test::Child client = start_in_workload([&] {
    return ask(client_socket(GetParam(), SOCK_DGRAM).get(), {world().resolver, 53}, "who");
  });
  const auto query = proxy().receive();
  EXPECT_EQ(query.payload, "who");
  expect_flow(query, world().resolver);
  proxy().answer(query);
  EXPECT_EQ(client.wait(), 0);
  EXPECT_EQ(counters().steered, 1u);
}

TEST_P(DnsSteeringTest, ConnectedQueryShowsTheResolverAsItsPeer) {
  test::Child client = start_in_workload([&] {
    const Endpoint resolver(world().resolver, 53);
    UniqueFd socket = client_socket(GetParam(), SOCK_DGRAM);
    if (::connect(socket.get(), resolver.address(), resolver.size()) != 0) return errno;
    if (Endpoint::peer_of(socket.get()).text() != resolver.text()) return EADDRNOTAVAIL;
    if (::send(socket.get(), "who", 3, 0) != 3) return errno;
    char buffer[16];
    return ::recv(socket.get(), buffer, sizeof buffer, 0) == 6 ? 0 : EBADMSG;
  });
  const auto query = proxy().receive();
  expect_flow(query, world().resolver);
  proxy().answer(query);
  EXPECT_EQ(client.wait(), 0);
}

// musl asks all its resolvers from one socket, and tells the answers apart by where they come from.
TEST_P(DnsSteeringTest, OneSocketMayAskSeveralResolversAtOnce) {
  test::Child client = start_in_workload([&] {
    UniqueFd socket = client_socket(GetParam(), SOCK_DGRAM);
    const Endpoint first(world().resolver, 53), second(world().second_resolver, 53);
    for (const Endpoint* resolver : {&first, &second})
      if (::sendto(socket.get(), "q", 1, 0, resolver->address(), resolver->size()) != 1)
        return errno;
    // The proxy answers the second one first.
    for (const Endpoint* resolver : {&second, &first}) {
      char buffer[16];
      Endpoint from = first;
      socklen_t size = from.size();
      if (::recvfrom(socket.get(), buffer, sizeof buffer, 0, from.address(), &size) < 0)
        return errno;
      if (from.text() != resolver->text()) return EADDRNOTAVAIL;
    }
    return 0;
  });
  const auto first = proxy().receive();
  const auto second = proxy().receive();
  ASSERT_NE(first.slot, second.slot);
  const bool in_order = first.slot < second.slot;
  const auto& to_first = in_order ? first : second;
  const auto& to_second = in_order ? second : first;
  expect_flow(to_first, world().resolver);
  expect_flow(to_second, world().second_resolver);
  proxy().answer(to_second);
  proxy().answer(to_first);
  EXPECT_EQ(client.wait(), 0);
}

TEST_P(DnsSteeringTest, OneSocketKeepsTheSlotOfAResolver) {
  test::Child client = start_in_workload([&] {
    UniqueFd socket = client_socket(GetParam(), SOCK_DGRAM);
    for (const char* question : {"a", "b", "c"})
      if (int error = ask(socket.get(), {world().resolver, 53}, question)) return error;
    return 0;
  });
  std::uint32_t slot = MG_DNS_SLOTS;
  for (int i = 0; i < 3; ++i) {
    const auto query = proxy().receive();
    ASSERT_LT(query.slot, static_cast<std::uint32_t>(MG_DNS_SLOTS));
    if (i > 0) {
      EXPECT_EQ(query.slot, slot);
    }
    slot = query.slot;
    proxy().answer(query);
  }
  EXPECT_EQ(client.wait(), 0);
}

TEST_P(DnsSteeringTest, TcpQueryReachesTheProxyAndShowsTheResolverAsItsPeer) {
  test::Child client = start_in_workload([&] {
    const Endpoint resolver(world().resolver, 53);
    UniqueFd socket = client_socket(GetParam(), SOCK_STREAM);
    if (::connect(socket.get(), resolver.address(), resolver.size()) != 0) return errno;
    if (Endpoint::peer_of(socket.get()).text() != resolver.text()) return EADDRNOTAVAIL;
    char byte = 0;
    return ::send(socket.get(), "q", 1, 0) == 1 && ::recv(socket.get(), &byte, 1, 0) == 1 ? 0
                                                                                          : errno;
  });
  Endpoint from = Endpoint(world().loopback, 0);
  socklen_t size = from.size();
  UniqueFd accepted(::accept(proxy().listener(), from.address(), &size));
  ASSERT_TRUE(accepted);
  const auto flow =
      datapath_->lookup_flow(network_cookie_, IPPROTO_TCP, 0, from.mapped(), from.port());
  ASSERT_TRUE(flow);
  EXPECT_EQ(flow->workload, kWorkload);
  EXPECT_EQ(flow->resolver, Endpoint(world().resolver, 53).mapped());
  ASSERT_EQ(::send(accepted.get(), "a", 1, 0), 1);
  EXPECT_EQ(client.wait(), 0);
}

TEST_P(DnsSteeringTest, LoopbackResolverIsSteeredToo) {
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  const std::string_view stub = GetParam() == AF_INET ? "127.0.0.53" : "::1";
  test::Child client = start_in_workload([&] {
    return ask(client_socket(GetParam(), SOCK_DGRAM).get(), {stub, 53}, "who");
  });
  const auto query = proxy().receive();
  expect_flow(query, stub);
  proxy().answer(query);
  EXPECT_EQ(client.wait(), 0);
}

TEST_P(DnsSteeringTest, ResolverAtTheUnspecifiedAddressIsTheLoopbackOne) {
  test::Child client = start_in_workload([&] { return udp_send({world().unspecified, 53}); });
  expect_flow(proxy().receive(), world().loopback);
  EXPECT_EQ(client.wait(), 0);
}

// A rule cannot open a way past the proxy.
TEST_P(DnsSteeringTest, AllowedResolverIsSteeredAllTheSame) {
  learn(world().resolver, kFirstSet);
  add_all_ports(kFirstSet);
  UniqueFd resolver = serve(SOCK_DGRAM, Endpoint(world().resolver, 53));
  test::Child client = start_in_workload([&] { return udp_send({world().resolver, 53}); });
  expect_flow(proxy().receive(), world().resolver);
  EXPECT_EQ(client.wait(), 0);
  EXPECT_FALSE(received(resolver.get()));
}

TEST_F(SteeringTest, MappedResolverIsSteeredToTheIpv4Proxy) {
  const std::string mapped = "::ffff:" + std::string(kIpv4World.resolver);
  test::Child client = start_in_workload([&] {
    return ask(client_socket(AF_INET6, SOCK_DGRAM).get(), {mapped, 53}, "who");
  });
  const auto query = proxy4_->receive();
  expect_flow(query, kIpv4World.resolver);
  proxy4_->answer(query);
  EXPECT_EQ(client.wait(), 0);

  test::Child connected = start_in_workload([&] {
    const Endpoint resolver(mapped, 53);
    UniqueFd socket = client_socket(AF_INET6, SOCK_DGRAM);
    if (::connect(socket.get(), resolver.address(), resolver.size()) != 0) return errno;
    if (Endpoint::peer_of(socket.get()).text() != resolver.text()) return EADDRNOTAVAIL;
    return ::send(socket.get(), "q", 1, 0) == 1 ? 0 : errno;
  });
  expect_flow(proxy4_->receive(), kIpv4World.resolver);
  EXPECT_EQ(connected.wait(), 0);
}

TEST_P(DnsSteeringTest, OwnSocketIsNeitherSteeredNorDenied) {
  UniqueFd resolver = serve(SOCK_DGRAM, Endpoint(world().resolver, 53));
  UniqueFd stranger = serve(SOCK_DGRAM, Endpoint(world().forbidden, 0));
  const Endpoint forbidden = Endpoint::local_of(stranger.get());
  EXPECT_EQ(
      in_workload([&] {
        const Endpoint to(world().resolver, 53);
        UniqueFd unconnected = client_socket(GetParam(), SOCK_DGRAM);
        UniqueFd connected = client_socket(GetParam(), SOCK_DGRAM);
        for (const UniqueFd* socket : {&unconnected, &connected})
          if (!datapath_->mark_own_socket(socket->get())) return 101;
        if (::sendto(unconnected.get(), "q", 1, 0, to.address(), to.size()) != 1) return errno;
        if (::connect(connected.get(), to.address(), to.size()) != 0) return errno;
        if (::send(connected.get(), "q", 1, 0) != 1) return errno;
        if (::sendto(unconnected.get(), "q", 1, 0, forbidden.address(), forbidden.size()) != 1)
          return errno;
        return 0;
      }),
      0);
  EXPECT_TRUE(received(resolver.get()));
  EXPECT_TRUE(received(resolver.get()));
  EXPECT_TRUE(received(stranger.get()));
  EXPECT_EQ(counters().steered, 0u);
}

TEST_P(DnsSteeringTest, UnsteeredPacketsToTheProxyAreDenied) {
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  add_prefix(world().loopback, GetParam() == AF_INET ? 32 : 128, kFirstSet);
  add_all_ports(kFirstSet);
  const Endpoint udp(world().loopback, proxy().udp_port(3)),
      tcp(world().loopback, proxy().tcp_port());
  EXPECT_EQ(in_workload([&] { return udp_send(udp); }), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_connect(udp); }), EPERM);
  EXPECT_EQ(in_workload([&] { return tcp_connect(tcp); }), EPERM);
  EXPECT_EQ(proxy().receive(std::chrono::milliseconds(20)).slot,
            static_cast<std::uint32_t>(MG_DNS_SLOTS));
}

TEST_P(DnsSteeringTest, PortFiftyThreeIsDeniedWhileNoProxyListens) {
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, {}));
  learn(world().resolver, kFirstSet);
  add_all_ports(kFirstSet);
  EXPECT_EQ(in_workload([&] { return udp_send({world().resolver, 53}); }), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_connect({world().resolver, 53}); }), EPERM);
  EXPECT_EQ(in_workload([&] { return tcp_connect({world().resolver, 53}); }), EPERM);
  const auto events = denials();
  ASSERT_EQ(events.size(), 3u);
  for (const mg_denial& event : events) EXPECT_EQ(event.reason, MG_REASON_NO_PROXY);
}

TEST_P(DnsSteeringTest, AuditModeWithoutAProxyLetsQueriesThrough) {
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, {}));
  set_mode(MG_MODE_AUDIT);
  UniqueFd resolver = serve(SOCK_DGRAM, Endpoint(world().resolver, 53));
  EXPECT_EQ(in_workload([&] { return udp_send({world().resolver, 53}); }), 0);
  EXPECT_TRUE(received(resolver.get()));
}

TEST_P(DnsSteeringTest, NestedWorkloadIsSteeredAsTheInnerOne) {
  constexpr std::uint32_t kInner = kWorkload + 1;
  test::TemporaryCgroup inner(cgroup_.path());
  ASSERT_TRUE(datapath_->attach(inner.directory(), kInner));
  set_mode(MG_MODE_ENFORCE, 0, kInner);
  for (int type : {SOCK_DGRAM, SOCK_STREAM}) {
    test::Child client([&] {
      if (int error = inner.enter()) return error;
      const Endpoint resolver(world().resolver, 53);
      UniqueFd socket = client_socket(GetParam(), type);
      if (::connect(socket.get(), resolver.address(), resolver.size()) != 0) return errno;
      if (Endpoint::peer_of(socket.get()).text() != resolver.text()) return EADDRNOTAVAIL;
      return ::send(socket.get(), "q", 1, 0) == 1 ? 0 : errno;
    });
    EXPECT_EQ(client.wait(), 0);
  }
  const auto query = proxy().receive();
  const auto flow = datapath_->lookup_flow(network_cookie_, IPPROTO_UDP, query.slot,
                                           query.client.mapped(), query.client.port());
  ASSERT_TRUE(flow);
  EXPECT_EQ(flow->workload, kInner);
}

// More resolvers than slots: the oldest slot is taken over, and nothing else.
TEST_P(DnsSteeringTest, NinthResolverOfASocketTakesOverTheFirstSlot) {
  const auto resolver_at = [&](int number) {
    const std::string base = GetParam() == AF_INET ? "203.0.113." : "2001:db8:53::";
    return Endpoint(base + std::to_string(number), 53);
  };
  test::Child client = start_in_workload([&] {
    UniqueFd socket = client_socket(GetParam(), SOCK_DGRAM);
    for (int i = 1; i <= MG_DNS_SLOTS + 1; ++i)
      if (int error = ask(socket.get(), resolver_at(i), "q")) return error;
    return 0;
  });
  std::vector<std::uint32_t> slots;
  for (int i = 1; i <= MG_DNS_SLOTS + 1; ++i) {
    const auto query = proxy().receive();
    ASSERT_LT(query.slot, static_cast<std::uint32_t>(MG_DNS_SLOTS));
    slots.push_back(query.slot);
    proxy().answer(query);
  }
  EXPECT_EQ(client.wait(), 0);
  EXPECT_EQ(slots.front(), slots.back());
  slots.pop_back();
  std::ranges::sort(slots);
  EXPECT_EQ(std::ranges::adjacent_find(slots), slots.end());
}

// A client in a network namespace that only the ports to be are set for.
class UnknownNetworkTest : public SteeringTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    SteeringTest::SetUp();
    if (!datapath_) return;
    ASSERT_TRUE(datapath_->remove_proxy_ports(network_cookie_));
    ASSERT_TRUE(datapath_->set_proxy_ports(kUnknownNetwork, ports()));
  }
  [[nodiscard]] const World& world() const { return world_of(GetParam()); }
  [[nodiscard]] FakeProxy& proxy() { return GetParam() == AF_INET ? *proxy4_ : *proxy6_; }
  [[nodiscard]] std::vector<mg_unserved> events() {
    std::vector<mg_unserved> result;
    datapath_->consume_unserved([&](const mg_unserved& event) { result.push_back(event); });
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(Families, UnknownNetworkTest, ::testing::Values(AF_INET, AF_INET6),
                         family_name);

TEST_P(UnknownNetworkTest, QueryIsLostWithoutAnErrorAndHandedToTheDaemon) {
  test::Child client = start_in_workload([&] { return udp_send({world().resolver, 53}); });
  const auto thread = static_cast<std::uint32_t>(client.pid());
  EXPECT_EQ(client.wait(), 0);
  EXPECT_EQ(proxy().receive(std::chrono::milliseconds(20)).slot,
            static_cast<std::uint32_t>(MG_DNS_SLOTS));
  const auto reported = events();
  ASSERT_EQ(reported.size(), 2u);
  const mg_unserved& call = reported[0];
  EXPECT_EQ(call.network, network_cookie_);
  EXPECT_EQ(call.thread, thread);
  EXPECT_EQ(call.workload, kWorkload);
  EXPECT_EQ(call.length, 0u);
  const mg_unserved& query = reported[1];
  EXPECT_EQ(query.network, network_cookie_);
  ASSERT_EQ(query.length, 1u);
  EXPECT_EQ(query.query[0], 'x');
  Address source;
  std::ranges::copy(query.source, source.begin());
  const auto flow =
      datapath_->lookup_flow(network_cookie_, IPPROTO_UDP, query.slot, source, ntohs(query.port));
  ASSERT_TRUE(flow);
  EXPECT_EQ(flow->resolver, Endpoint(world().resolver, 53).mapped());
  EXPECT_EQ(counters().unserved, 1u);
  EXPECT_EQ(counters().denied_packets, 0u);
}

TEST_P(UnknownNetworkTest, QueryOfThe512BytesIsHandedOverWholeAndALargerOneIsNot) {
  const auto send_bytes = [&](std::size_t size) {
    return in_workload([&] {
      const Endpoint to(world().resolver, 53);
      const std::string text(size, 'q');
      const UniqueFd socket = client_socket(GetParam(), SOCK_DGRAM);
      return ::sendto(socket.get(), text.data(), text.size(), 0, to.address(), to.size()) < 0
                 ? errno
                 : 0;
    });
  };
  EXPECT_EQ(send_bytes(MG_MAX_QUERY), 0);
  auto reported = events();
  ASSERT_EQ(reported.size(), 2u);
  ASSERT_EQ(reported[1].length, static_cast<std::uint32_t>(MG_MAX_QUERY));
  EXPECT_EQ(reported[1].query[MG_MAX_QUERY - 1], 'q');
  EXPECT_EQ(send_bytes(MG_MAX_QUERY + 1), 0);
  EXPECT_EQ(events().size(), 1u);
  EXPECT_EQ(send_bytes(0), 0);
  EXPECT_EQ(events().size(), 1u);
}

TEST_P(UnknownNetworkTest, AnswerReachesTheSocketThatAskedBeforeTheProxyListened) {
  test::Child client = start_in_workload([&] {
    return ask(client_socket(GetParam(), SOCK_DGRAM).get(), {world().resolver, 53}, "early");
  });
  std::optional<mg_unserved> query;
  for (int i = 0; i < 200 && !query; ++i) {
    for (const mg_unserved& event : events())
      if (event.length > 0) query = event;
    ::usleep(10000);
  }
  ASSERT_TRUE(query);
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, ports()));
  FakeProxy::Query taken;
  taken.slot = query->slot;
  taken.client = Endpoint(world().loopback, ntohs(query->port));
  taken.payload = "early";
  proxy().answer(taken);
  EXPECT_EQ(client.wait(), 0);
}

TEST_P(UnknownNetworkTest, TcpConnectionIsMadeOnceTheProxyListens) {
  test::Child client = start_in_workload([&] { return tcp_connect({world().resolver, 53}); });
  bool called = false;
  for (int i = 0; i < 200 && !called; ++i) {
    called = !events().empty();
    ::usleep(10000);
  }
  ASSERT_TRUE(called);
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, ports()));
  EXPECT_EQ(client.wait(), 0);  // the SYN was sent again
}

TEST_P(UnknownNetworkTest, NetworkWithoutPortsIsDeniedAtOnce) {
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, {}));
  EXPECT_EQ(in_workload([&] { return udp_send({world().resolver, 53}); }), EPERM);
  EXPECT_TRUE(events().empty());
}

// What is a proxy port in one namespace is any port in another.
TEST_P(DnsSteeringTest, ProxyPortOfAnotherNetworkIsAPortLikeAnyOther) {
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  const UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().loopback, 0));
  const Endpoint to = Endpoint::local_of(server.get());
  ProxyPorts elsewhere;
  elsewhere.udp4[0] = elsewhere.udp6[0] = to.port();
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_ + 1000000, elsewhere));
  EXPECT_EQ(in_workload([&] { return udp_send(to); }), 0);
  EXPECT_TRUE(received(server.get()));
  EXPECT_EQ(in_workload([&] { return udp_connect_and_send(to); }), 0);
  EXPECT_TRUE(received(server.get()));
}

TEST_P(DnsSteeringTest, FlowsOfOtherNetworksAreNotFound) {
  test::Child client = start_in_workload([&] { return udp_send({world().resolver, 53}); });
  const auto query = proxy().receive();
  expect_flow(query, world().resolver);
  EXPECT_FALSE(datapath_->lookup_flow(network_cookie_ + 1, IPPROTO_UDP, query.slot,
                                      query.client.mapped(), query.client.port()));
  EXPECT_EQ(client.wait(), 0);
}

TEST_F(SteeringTest, CookieOfANetworkIsTheSameByProbe) {
  const UniqueFd socket = client_socket(AF_INET, SOCK_DGRAM);
  const auto probed = probe_network_cookie(socket.get());
  ASSERT_TRUE(probed) << probed.error().message();
  EXPECT_EQ(*probed, network_cookie_);
  const test::NetworkNamespace another({});
  const UniqueFd there = client_socket(AF_INET, SOCK_DGRAM);
  const auto other = probe_network_cookie(there.get());
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_NE(*other, network_cookie_);
}

TEST_F(SteeringTest, RemovedProxyPortsAreNoneAndOthersStay) {
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_ + 1, ports()));
  EXPECT_EQ(datapath_->proxied_networks(),
            (std::vector<NetworkCookie>{network_cookie_, network_cookie_ + 1}));
  ASSERT_TRUE(datapath_->remove_proxy_ports(network_cookie_ + 1));
  ASSERT_TRUE(datapath_->remove_proxy_ports(network_cookie_ + 1));
  EXPECT_EQ(datapath_->proxied_networks(), (std::vector<NetworkCookie>{network_cookie_}));
  EXPECT_EQ(datapath_->proxy_ports(network_cookie_), ports());
  EXPECT_EQ(datapath_->proxy_ports(network_cookie_ + 1), ProxyPorts{});
}

TEST_P(DnsSteeringTest, ProxyPortsAreReadBackAsSet) {
  EXPECT_EQ(datapath_->proxy_ports(network_cookie_), ports());
}

}  // namespace
}  // namespace mapgate::datapath
