// SPDX-License-Identifier: Apache-2.0
// Ways around connect() and sendmsg(), and what must not be caught by them.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

using test::Endpoint;
using test::serve;

class SocketTrapsTest : public FamilyTest {
 protected:
  // Sends from the workload to a bound socket of this process, and says whether it arrived.
  int exchange(int socket, const Endpoint& to) {
    return ::sendto(socket, "x", 1, 0, to.address(), to.size()) == 1 ? 0 : errno;
  }
};

INSTANTIATE_TEST_SUITE_P(Family, SocketTrapsTest, ::testing::Values(AF_INET, AF_INET6),
                         family_name);

TEST_P(SocketTrapsTest, FastOpenIsRefusedBeforeAPacketLeaves) {
  UniqueFd server = serve(SOCK_STREAM, Endpoint(world().unspecified, 0));
  const std::uint16_t port = Endpoint::local_of(server.get()).port();
  const int queue = 16;
  ASSERT_EQ(::setsockopt(server.get(), IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue), 0);
  EXPECT_EQ(in_workload([&] {
              const Endpoint to(world().forbidden, port);
              UniqueFd socket(::socket(to.family(), SOCK_STREAM, 0));
              return ::sendto(socket.get(), "x", 1, MSG_FASTOPEN, to.address(), to.size()) < 0
                         ? errno
                         : 0;
            }),
            EPERM);
  pollfd incoming{server.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&incoming, 1, 50), 0);
}

TEST_P(SocketTrapsTest, ConnectedDatagramSocketThatReconnectsIsJudgedAgain) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().unspecified, 0));
  const std::uint16_t port = Endpoint::local_of(server.get()).port();
  EXPECT_EQ(
      in_workload([&] {
        const Endpoint allowed(world().allowed, port), forbidden(world().forbidden, port);
        UniqueFd socket(::socket(GetParam(), SOCK_DGRAM, 0));
        if (::connect(socket.get(), allowed.address(), allowed.size()) != 0) return errno;
        if (::send(socket.get(), "x", 1, 0) != 1) return errno;
        if (::connect(socket.get(), forbidden.address(), forbidden.size()) == 0 || errno != EPERM)
          return EPROTO;
        // Neither by another way of saying where to.
        if (exchange(socket.get(), forbidden) != EPERM) return EPROTO;
        return exchange(socket.get(), allowed);
      }),
      0);
  EXPECT_TRUE(received(server.get()));
  EXPECT_TRUE(received(server.get()));
  EXPECT_FALSE(received(server.get()));
}

TEST_P(SocketTrapsTest, SocketsMadeBeforeTheAttachAreJudged) {
  test::TemporaryCgroup late;
  UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().unspecified, 0));
  UniqueFd listener = serve(SOCK_STREAM, Endpoint(world().unspecified, 0));
  const std::uint16_t udp_port = Endpoint::local_of(server.get()).port();
  const std::uint16_t tcp_port = Endpoint::local_of(listener.get()).port();
  int ready[2], attached[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(attached), 0);
  test::Child child([&] {
    if (int error = late.enter()) return error;
    const Endpoint udp(world().forbidden, udp_port), tcp(world().forbidden, tcp_port);
    UniqueFd datagram(::socket(GetParam(), SOCK_DGRAM, 0));
    UniqueFd connected(::socket(GetParam(), SOCK_DGRAM, 0));
    UniqueFd established(::socket(GetParam(), SOCK_STREAM, 0));
    UniqueFd stream(::socket(GetParam(), SOCK_STREAM, 0));
    if (::connect(connected.get(), udp.address(), udp.size()) != 0) return errno;
    if (::connect(established.get(), tcp.address(), tcp.size()) != 0) return errno;
    char byte = 0;
    if (::write(ready[1], "x", 1) != 1 || ::read(attached[0], &byte, 1) != 1) return EPIPE;
    if (exchange(datagram.get(), udp) != EPERM) return 101;
    if (::send(connected.get(), "x", 1, 0) == 1 || errno != EPERM) return 102;
    if (::connect(stream.get(), tcp.address(), tcp.size()) == 0 || errno != EPERM) return 103;
    return ::send(established.get(), "x", 1, 0) == 1 ? 0 : 104;
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_TRUE(datapath_->attach(late.directory(), kWorkload));
  ASSERT_EQ(::write(attached[1], "x", 1), 1);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(received(server.get()));
  for (int fd : {ready[0], ready[1], attached[0], attached[1]}) ::close(fd);
  // What was established before it goes on.
  UniqueFd accepted(::accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, 0), 1);
}

// A workload's own programs run for the sockets it made, so only the guard sees these.
TEST_P(SocketTrapsTest, SocketsHandedInFromAnotherCgroupAreJudged) {
  ASSERT_TRUE(datapath_->capabilities().foreign_sockets)
      << datapath_->capabilities().foreign_sockets_missing;
  learn(world().allowed, kFirstSet);
  learn(world().other, kSecondSet);
  add_all_ports(kFirstSet);
  UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().unspecified, 0));
  UniqueFd listener = serve(SOCK_STREAM, Endpoint(world().unspecified, 0));
  const std::uint16_t udp_port = Endpoint::local_of(server.get()).port();
  const std::uint16_t tcp_port = Endpoint::local_of(listener.get()).port();
  // Made here, outside of the workload; used there.
  UniqueFd datagram(::socket(GetParam(), SOCK_DGRAM, 0));
  UniqueFd stream(::socket(GetParam(), SOCK_STREAM, 0));
  EXPECT_EQ(in_workload([&] {
              const Endpoint udp(world().forbidden, udp_port), tcp(world().forbidden, tcp_port);
              const Endpoint dns(world().resolver, 53);
              if (exchange(datagram.get(), udp) != EPERM) return 101;
              if (::connect(datagram.get(), udp.address(), udp.size()) == 0 || errno != EPERM)
                return 102;
              if (::connect(stream.get(), tcp.address(), tcp.size()) == 0 || errno != EPERM)
                return 103;
              if (exchange(datagram.get(), dns) != EPERM) return 104;
              // Nobody judges the packets of such a socket, so its connect() is judged with the
              // port.
              const Endpoint other_port(world().other, udp_port);
              if (::connect(datagram.get(), other_port.address(), other_port.size()) == 0 ||
                  errno != EPERM)
                return 105;
              const Endpoint allowed(world().allowed, tcp_port);
              if (::connect(stream.get(), allowed.address(), allowed.size()) != 0) return errno;
              if (::send(stream.get(), "x", 1, 0) != 1) return errno;
              return exchange(datagram.get(), {world().allowed, udp_port});
            }),
            0);
  EXPECT_TRUE(received(server.get()));
  EXPECT_FALSE(received(server.get()));
  EXPECT_EQ(counters().denied_sends, 2u);
  EXPECT_EQ(counters().denied_connects, 3u);
  // This process is in no workload.
  EXPECT_EQ(udp_send({world().forbidden, udp_port}), 0);
}

TEST_P(SocketTrapsTest, SocketsOfAnotherWorkloadAreJudgedByBoth) {
  constexpr std::uint32_t kMaker = kWorkload + 1;
  test::TemporaryCgroup maker;
  ASSERT_TRUE(datapath_->attach(maker.directory(), kMaker));
  set_mode(MG_MODE_ENFORCE, 0, kMaker);
  learn(world().allowed, kFirstSet);
  learn(world().other, kFirstSet, kMaker);
  for (std::uint32_t workload : {kWorkload, kMaker}) {
    add_all_ports(kFirstSet, workload);
    learn(world().second_resolver, kFirstSet, workload);
  }
  EXPECT_EQ(test::run_in_child([&] {
              if (int error = maker.enter()) return error;
              UniqueFd socket(::socket(GetParam(), SOCK_DGRAM, 0));
              if (int error = exchange(socket.get(), {world().other, 99})) return error;
              if (int error = cgroup_.enter()) return error;
              if (exchange(socket.get(), {world().other, 99}) != EPERM) return 101;
              if (exchange(socket.get(), {world().allowed, 99}) != EPERM) return 102;
              return exchange(socket.get(), {world().second_resolver, 99});
            }),
            0);
  EXPECT_EQ(counters().denied_sends, 1u);
  EXPECT_EQ(datapath_->counters(kMaker)->denied_sends, 1u);
}

// As with an established connection: whoever connected it has judged it.
TEST_P(SocketTrapsTest, DatagramSocketConnectedElsewhereKeepsItsPeer) {
  UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().forbidden, 0));
  const Endpoint to = Endpoint::local_of(server.get());
  UniqueFd connected(::socket(GetParam(), SOCK_DGRAM, 0));
  ASSERT_EQ(::connect(connected.get(), to.address(), to.size()), 0);
  EXPECT_EQ(in_workload([&] { return ::send(connected.get(), "x", 1, 0) == 1 ? 0 : errno; }), 0);
  EXPECT_TRUE(received(server.get()));
}

TEST_P(SocketTrapsTest, RawSocketsAreJudgedByWhatTheySend) {
  learn(world().allowed, kFirstSet);
  add_ports(IPPROTO_UDP, 4242, kFirstSet);
  const auto datagram = [](std::uint16_t port) {
    const std::uint16_t header[4] = {htons(5353), htons(port), htons(8), 0};
    return std::string(reinterpret_cast<const char*>(header), sizeof header);
  };
  const auto send = [&](std::string_view to, std::uint16_t port) {
    return in_workload([&] { return send_raw(GetParam(), IPPROTO_UDP, {to, 0}, datagram(port)); });
  };
  EXPECT_EQ(send(world().allowed, 4242), 0);
  EXPECT_EQ(send(world().allowed, 4243), EPERM);
  EXPECT_EQ(send(world().forbidden, 4242), EPERM);
  EXPECT_EQ(send(world().resolver, 53), EPERM);
  // A header that ends before the ports.
  EXPECT_EQ(in_workload([&] {
              return send_raw(GetParam(), IPPROTO_UDP, {world().allowed, 0}, "xy");
            }),
            EPERM);
}

// A raw socket that is connected has the state of an established TCP socket.
TEST_P(SocketTrapsTest, ConnectedRawTcpSocketIsNotTakenForAnEstablishedConnection) {
  EXPECT_EQ(in_workload([&] {
              const Endpoint to(world().forbidden, 0);
              UniqueFd socket(::socket(GetParam(), SOCK_RAW, IPPROTO_TCP));
              if (::connect(socket.get(), to.address(), to.size()) != 0)
                return errno == EPERM ? 0 : errno;
              tcphdr syn{};
              syn.dest = htons(80);
              syn.syn = 1;
              syn.doff = 5;
              return ::send(socket.get(), &syn, sizeof syn, 0) < 0 && errno == EPERM ? 0 : EPROTO;
            }),
            0);
}

TEST_P(SocketTrapsTest, AnswersToWhatCameInPass) {
  // TCP: the listener's SYN-ACK, and what it sends on the accepted connection.
  UniqueFd ready = serve(SOCK_DGRAM, Endpoint(world().loopback, 0));
  const Endpoint ready_at = Endpoint::local_of(ready.get());
  set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
  const std::string_view server_address = world().allowed, client_address = world().forbidden;
  test::Child server = start_in_workload([&] {
    UniqueFd listener = serve(SOCK_STREAM, Endpoint(server_address, 0));
    UniqueFd datagram = serve(SOCK_DGRAM, Endpoint(server_address, 0));
    UniqueFd control(::socket(GetParam(), SOCK_DGRAM, 0));
    const std::uint16_t ports[2] = {Endpoint::local_of(listener.get()).port(),
                                    Endpoint::local_of(datagram.get()).port()};
    if (::sendto(control.get(), ports, sizeof ports, 0, ready_at.address(), ready_at.size()) < 0)
      return errno;
    UniqueFd accepted(::accept(listener.get(), nullptr, nullptr));
    if (::send(accepted.get(), "t", 1, 0) != 1) return errno;
    char byte = 0;
    Endpoint client = ready_at;
    socklen_t size = client.size();
    if (::recvfrom(datagram.get(), &byte, 1, 0, client.address(), &size) != 1) return errno;
    if (int error = exchange(datagram.get(), client)) return error;
    // The peer of another local port is a stranger.
    UniqueFd second(::socket(GetParam(), SOCK_DGRAM, 0));
    return exchange(second.get(), client) == EPERM ? 0 : EPROTO;
  });
  std::uint16_t ports[2] = {};
  ASSERT_EQ(::recv(ready.get(), ports, sizeof ports, 0), static_cast<ssize_t>(sizeof ports));

  UniqueFd stream = serve(SOCK_DGRAM, Endpoint(client_address, 0));
  const Endpoint tcp(server_address, ports[0]), udp(server_address, ports[1]);
  UniqueFd client(::socket(GetParam(), SOCK_STREAM, 0));
  const Endpoint from(client_address, 0);
  ASSERT_EQ(::bind(client.get(), from.address(), from.size()), 0);
  ASSERT_EQ(::connect(client.get(), tcp.address(), tcp.size()), 0);
  char byte = 0;
  EXPECT_EQ(::recv(client.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 't');
  ASSERT_EQ(exchange(stream.get(), udp), 0);
  EXPECT_EQ(::recv(stream.get(), &byte, 1, 0), 1);
  EXPECT_EQ(server.wait(), 0);
}

TEST_P(SocketTrapsTest, PeerThatHasBeenSilentForLongIsAStranger) {
  UniqueFd client = serve(SOCK_DGRAM, Endpoint(world().forbidden, 0));
  const Endpoint to = Endpoint::local_of(client.get());
  constexpr std::uint16_t kLocalPort = 7777;
  // Answers from a socket to which the peer has sent `ago` nanoseconds ago; `off`: to another
  // socket, that is, on the same port of another network namespace.
  const auto answer = [&](std::optional<std::uint64_t> ago, std::uint64_t off = 0) {
    return in_workload([&] {
      UniqueFd socket = serve(SOCK_DGRAM, Endpoint(world().allowed, kLocalPort));
      if (ago) {
        mg_udp_peer_key key{};
        socklen_t size = sizeof key.cookie;
        if (::getsockopt(socket.get(), SOL_SOCKET, SO_COOKIE, &key.cookie, &size) != 0)
          return errno;
        key.cookie += off;
        std::ranges::copy(to.mapped(), key.address);
        key.port = htons(to.port());
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        const mg_udp_peer peer{static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 - *ago};
        if (bpf_map_update_elem(datapath_->map_fd("mg_udp_peers"), &key, &peer, BPF_ANY) != 0)
          return errno;
      }
      return exchange(socket.get(), to);
    });
  };
  EXPECT_EQ(answer({}), EPERM);
  EXPECT_EQ(answer(MG_UDP_PEER_TIMEOUT_NS / 2), 0);
  EXPECT_EQ(answer(MG_UDP_PEER_TIMEOUT_NS / 2, 1), EPERM);
  EXPECT_EQ(answer(MG_UDP_PEER_TIMEOUT_NS * 2), EPERM);
}

// The connection was judged by its peer's address. What sends its packets elsewhere is not part of
// that.
TEST_P(SocketTrapsTest, EstablishedConnectionIsNotRoutedElsewhere) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  UniqueFd listener = serve(SOCK_STREAM, Endpoint(world().allowed, 0));
  const Endpoint at = Endpoint::local_of(listener.get());
  const int sent = in_workload([&] {
    UniqueFd stream(::socket(GetParam(), SOCK_STREAM, 0));
    if (::connect(stream.get(), at.address(), at.size()) != 0) return 101;
    std::string route;
    if (GetParam() == AF_INET) {  // loose source route, RFC 791
      route = std::string("\x83\x07\x04", 3) + std::string(4, '\0') + '\x01';
      ::inet_pton(AF_INET, world().forbidden.data(), route.data() + 3);
    } else {  // segment routing header, RFC 8754
      route = std::string("\x00\x04\x04\x01\x01\x00\x00\x00", 8) + std::string(32, '\0');
      ::inet_pton(AF_INET6, world().allowed.data(), route.data() + 8);
      ::inet_pton(AF_INET6, world().forbidden.data(), route.data() + 24);
    }
    const auto size = static_cast<socklen_t>(route.size());
    const int set = GetParam() == AF_INET
                        ? ::setsockopt(stream.get(), IPPROTO_IP, IP_OPTIONS, route.data(), size)
                        : ::setsockopt(stream.get(), IPPROTO_IPV6, IPV6_RTHDR, route.data(), size);
    if (set != 0) return errno;
    // TCP keeps what was refused and sends it again later: the refusals are counted.
    return ::send(stream.get(), "x", 1, 0) == 1 ? 0 : errno;
  });
  EXPECT_EQ(sent, 0);
  EXPECT_GE(counters().denied_packets, 1u);
  const std::vector<mg_denial> events = denials();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front().reason, MG_REASON_SOURCE_ROUTE);
}

// A connected flow (QUIC) survives the expiry of the address: its peer has answered.
TEST_P(SocketTrapsTest, ConnectedDatagramFlowSurvivesTheRevocationOfItsAddress) {
  learn(world().allowed, kFirstSet);
  add_all_ports(kFirstSet);
  UniqueFd server = serve(SOCK_DGRAM, Endpoint(world().allowed, 0));
  const Endpoint at = Endpoint::local_of(server.get());
  int revoked[2], answered[2];
  ASSERT_EQ(::pipe(revoked), 0);
  ASSERT_EQ(::pipe(answered), 0);
  test::Child child = start_in_workload([&] {
    UniqueFd socket(::socket(GetParam(), SOCK_DGRAM, 0));
    char byte = 0;
    if (::connect(socket.get(), at.address(), at.size()) != 0 ||
        ::send(socket.get(), "x", 1, 0) != 1)
      return errno;
    if (::recv(socket.get(), &byte, 1, 0) != 1 || ::write(answered[1], "x", 1) != 1) return errno;
    if (::read(revoked[0], &byte, 1) != 1) return errno;
    if (::send(socket.get(), "y", 1, 0) != 1) return errno;
    return udp_send(at) == EPERM ? 0 : EPROTO;  // a new flow does not pass
  });
  char byte = 0;
  Endpoint client = at;
  socklen_t size = client.size();
  ASSERT_EQ(::recvfrom(server.get(), &byte, 1, 0, client.address(), &size), 1);
  ASSERT_EQ(exchange(server.get(), client), 0);
  ASSERT_EQ(::read(answered[0], &byte, 1), 1);
  forget(world().allowed);
  ASSERT_EQ(::write(revoked[1], "x", 1), 1);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(received(server.get()));
  for (int fd : {revoked[0], revoked[1], answered[0], answered[1]}) ::close(fd);
}

class MappedAddressTest : public DatapathTest {};

TEST_F(MappedAddressTest, MappedAddressIsJudgedAsTheIpv4Address) {
  learn(kIpv4World.allowed, kFirstSet);
  add_all_ports(kFirstSet);
  UniqueFd listener = serve(SOCK_STREAM, Endpoint("0.0.0.0", 0));
  UniqueFd server = serve(SOCK_DGRAM, Endpoint("0.0.0.0", 0));
  const std::uint16_t tcp = Endpoint::local_of(listener.get()).port();
  const std::uint16_t udp = Endpoint::local_of(server.get()).port();
  const std::string allowed = "::ffff:" + std::string(kIpv4World.allowed);
  const std::string forbidden = "::ffff:" + std::string(kIpv4World.forbidden);
  EXPECT_EQ(in_workload([&] { return tcp_connect({allowed, tcp}); }), 0);
  EXPECT_EQ(in_workload([&] { return udp_send({allowed, udp}); }), 0);
  EXPECT_EQ(in_workload([&] { return udp_connect_and_send({allowed, udp}); }), 0);
  EXPECT_EQ(in_workload([&] { return tcp_connect({forbidden, tcp}); }), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_send({forbidden, udp}); }), EPERM);
  EXPECT_EQ(in_workload([&] { return udp_connect_and_send({forbidden, udp}); }), EPERM);
}

TEST_F(MappedAddressTest, MappedLoopbackAndMappedUnspecifiedAreLoopback) {
  add_all_ports(kFirstSet);
  UniqueFd server = serve(SOCK_DGRAM, Endpoint("0.0.0.0", 0));
  const std::uint16_t port = Endpoint::local_of(server.get()).port();
  for (std::string_view address : {"::ffff:127.0.0.1", "::ffff:0.0.0.0", "127.1.2.3"}) {
    set_mode(MG_MODE_ENFORCE);
    EXPECT_EQ(in_workload([&] { return udp_send({address, port}); }), EPERM) << address;
    set_mode(MG_MODE_ENFORCE, MG_WORKLOAD_ALLOW_LOOPBACK);
    EXPECT_EQ(in_workload([&] { return udp_send({address, port}); }), 0) << address;
  }
}

class RawIpv4Test : public DatapathTest {
 protected:
  // Sends an own IPv4 header by a raw socket with IP_HDRINCL; the socket's destination is `route`.
  int send_header(const iphdr& header, std::string_view route) {
    return in_workload([&] {
      std::string packet(sizeof header + 8, '\0');
      std::memcpy(packet.data(), &header, sizeof header);
      const std::uint16_t udp[4] = {htons(1234), htons(4242), htons(8), 0};
      std::memcpy(packet.data() + sizeof header, udp, sizeof udp);
      return send_raw(AF_INET, IPPROTO_RAW, {route, 0}, packet);
    });
  }

  static iphdr header_to(std::string_view address) {
    const Endpoint endpoint(address, 0);
    iphdr header{};
    header.version = 4;
    header.ihl = 5;
    header.ttl = 64;
    header.protocol = IPPROTO_UDP;
    header.daddr = reinterpret_cast<const sockaddr_in*>(endpoint.address())->sin_addr.s_addr;
    return header;
  }
};

TEST_F(RawIpv4Test, OwnHeaderIsJudgedByItsOwnDestination) {
  learn(kIpv4World.allowed, kFirstSet);
  add_ports(IPPROTO_UDP, 4242, kFirstSet);
  EXPECT_EQ(send_header(header_to(kIpv4World.allowed), kIpv4World.allowed), 0);
  EXPECT_EQ(send_header(header_to(kIpv4World.forbidden), kIpv4World.allowed), EPERM);
}

TEST_F(RawIpv4Test, OwnHeaderThatIsAFragmentIsDenied) {
  learn(kIpv4World.allowed, kFirstSet);
  add_all_ports(kFirstSet);
  for (std::uint16_t fragment : std::initializer_list<std::uint16_t>{0x2000, 0x0001, 0x1fff}) {
    iphdr header = header_to(kIpv4World.allowed);
    header.frag_off = htons(fragment);
    EXPECT_EQ(send_header(header, kIpv4World.allowed), EPERM) << fragment;
  }
  iphdr whole = header_to(kIpv4World.allowed);
  whole.frag_off = htons(0x4000);  // "do not fragment" is no fragment
  EXPECT_EQ(send_header(whole, kIpv4World.allowed), 0);
}

}  // namespace
}  // namespace mapgate::datapath
