// SPDX-License-Identifier: Apache-2.0
#include "agent/sockets/socket_diag.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/network.h"
#include "tests/support/requirements.h"

namespace mapgate::sockets {
namespace {

using test::NetworkNamespace;

constexpr const char* kAddress = "198.51.100.1";
constexpr const char* kAddress6 = "2001:db8::1";

class SocketDiagTest : public testing::Test {
 protected:
  void SetUp() override {
    MAPGATE_REQUIRE(geteuid() == 0, "needs root: it makes network namespaces");
    network_.emplace(std::vector<std::string>{kAddress, kAddress6});
    auto diag = SocketDiag::open();
    ASSERT_TRUE(diag) << diag.error().message();
    diag_ = std::move(*diag);
  }

  [[nodiscard]] std::vector<Connection> connections() {
    std::vector<Connection> found;
    const auto result = diag_->for_each([&](const Connection& each) { found.push_back(each); });
    EXPECT_TRUE(result) << result.error().message();
    return found;
  }

  [[nodiscard]] std::optional<Connection> find_by_local(const test::Endpoint& local) {
    for (const Connection& each : connections()) {
      if (each.local == Endpoint{local.mapped(), local.port()}) return each;
    }
    return std::nullopt;
  }

  // Ends what the socket is connected to; its owner notices.
  void destroy(const UniqueFd& socket) {
    const auto found = find_by_local(test::Endpoint::local_of(socket.get()));
    ASSERT_TRUE(found);
    const auto destroyed = diag_->destroy(*found);
    MAPGATE_REQUIRE(destroyed || destroyed.error() != std::errc::operation_not_supported,
                    "the kernel was built without INET_DIAG_DESTROY");
    ASSERT_TRUE(destroyed) << destroyed.error().message();
    char byte = 0;
    EXPECT_EQ(recv(socket.get(), &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNABORTED);
  }

  [[nodiscard]] static UniqueFd connect_to(int type, const test::Endpoint& to) {
    UniqueFd socket(::socket(to.family(), type, 0));
    EXPECT_EQ(connect(socket.get(), to.address(), to.size()), 0) << errno;
    return socket;
  }

  std::optional<NetworkNamespace> network_;
  std::optional<SocketDiag> diag_;
};

TEST_F(SocketDiagTest, FindsBothEndsOfATcpConnectionAndWhichOneWasAccepted) {
  for (const char* address : {kAddress, kAddress6}) {
    const UniqueFd listener = test::serve(SOCK_STREAM, test::Endpoint(address, 0));
    const test::Endpoint at = test::Endpoint::local_of(listener.get());
    const UniqueFd client = connect_to(SOCK_STREAM, at);
    const auto began = find_by_local(test::Endpoint::local_of(client.get()));
    ASSERT_TRUE(began);
    EXPECT_EQ(began->protocol, IPPROTO_TCP);
    EXPECT_EQ(began->remote, (Endpoint{at.mapped(), at.port()}));
    EXPECT_FALSE(began->accepted);
    EXPECT_NE(began->cookie, 0U);
    EXPECT_NE(began->cgroup, 0U);
    const auto accepted = find_by_local(at);
    ASSERT_TRUE(accepted) << "not even accepted yet, but connected";
    EXPECT_TRUE(accepted->accepted);
  }
}

TEST_F(SocketDiagTest, FindsConnectedUdpSocketsOnly) {
  const UniqueFd server = test::serve(SOCK_DGRAM, test::Endpoint(kAddress, 0));
  EXPECT_THAT(connections(), testing::IsEmpty());
  const UniqueFd client = connect_to(SOCK_DGRAM, test::Endpoint::local_of(server.get()));
  const auto found = connections();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().protocol, IPPROTO_UDP);
  EXPECT_EQ(found.front().local.port, test::Endpoint::local_of(client.get()).port());
}

TEST_F(SocketDiagTest, AnIpv4ConnectionOfAnIpv6SocketHasMappedAddresses) {
  const UniqueFd listener = test::serve(SOCK_STREAM, test::Endpoint(kAddress, 0));
  const std::uint16_t port = test::Endpoint::local_of(listener.get()).port();
  const UniqueFd client =
      connect_to(SOCK_STREAM, test::Endpoint("::ffff:" + std::string(kAddress), port));
  const auto found = find_by_local(test::Endpoint::local_of(client.get()));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->remote.address, test::Endpoint(kAddress, port).mapped());
}

TEST_F(SocketDiagTest, EndsAConnectionForBothItsOwnerAndItsPeer) {
  const UniqueFd listener = test::serve(SOCK_STREAM, test::Endpoint(kAddress, 0));
  const UniqueFd client = connect_to(SOCK_STREAM, test::Endpoint::local_of(listener.get()));
  const UniqueFd other = connect_to(SOCK_STREAM, test::Endpoint::local_of(listener.get()));
  const UniqueFd accepted(accept(listener.get(), nullptr, nullptr));
  const auto found = find_by_local(test::Endpoint::local_of(client.get()));
  destroy(client);
  if (IsSkipped() || HasFatalFailure()) return;
  char byte = 0;
  EXPECT_EQ(recv(accepted.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(send(other.get(), "x", 1, 0), 1);

  ASSERT_TRUE(found);
  const auto again = diag_->destroy(*found);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error(), std::errc::no_such_file_or_directory);
}

TEST_F(SocketDiagTest, EndsAConnectedUdpSocketSoThatItSendsNoMore) {
  const UniqueFd server = test::serve(SOCK_DGRAM, test::Endpoint(kAddress6, 0));
  const UniqueFd client = connect_to(SOCK_DGRAM, test::Endpoint::local_of(server.get()));
  ASSERT_EQ(send(client.get(), "x", 1, 0), 1);
  destroy(client);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(send(client.get(), "x", 1, 0), -1);
}

TEST_F(SocketDiagTest, ASocketOfAnotherNamespaceIsNotFound) {
  const UniqueFd listener = test::serve(SOCK_STREAM, test::Endpoint(kAddress, 0));
  const UniqueFd client = connect_to(SOCK_STREAM, test::Endpoint::local_of(listener.get()));
  const NetworkNamespace elsewhere({});
  auto diag = SocketDiag::open();
  ASSERT_TRUE(diag);
  std::size_t count = 0;
  ASSERT_TRUE(diag->for_each([&](const Connection&) { ++count; }));
  EXPECT_EQ(count, 0U);
  EXPECT_FALSE(connections().empty());
}

TEST_F(SocketDiagTest, OpensInANamespaceThatItsThreadIsNotIn) {
  const UniqueFd listener = test::serve(SOCK_STREAM, test::Endpoint(kAddress, 0));
  const UniqueFd client = connect_to(SOCK_STREAM, test::Endpoint::local_of(listener.get()));
  const auto there = sockets::NetworkNamespace::of_thread(gettid());
  ASSERT_TRUE(there);
  const NetworkNamespace elsewhere({});
  auto diag = SocketDiag::open(*there);
  ASSERT_TRUE(diag) << diag.error().message();
  std::optional<Connection> found;
  ASSERT_TRUE(diag->for_each([&](const Connection& each) {
    if (!each.accepted) found = each;
  }));
  ASSERT_TRUE(found);
  const auto destroyed = diag->destroy(*found);
  MAPGATE_REQUIRE(destroyed || destroyed.error() != std::errc::operation_not_supported,
                  "the kernel was built without INET_DIAG_DESTROY");
  char byte = 0;
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNABORTED);
}

}  // namespace
}  // namespace mapgate::sockets
