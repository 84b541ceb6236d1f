// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/inet_diag.h>

#include <array>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <system_error>

#include "agent/sockets/network_namespace.h"

struct mnl_socket;

namespace mapgate::sockets {

// IPv6, or IPv4 mapped into IPv6; the port in host byte order.
struct Endpoint {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// A TCP or UDP socket of which the peer is known.
struct Connection {
  std::uint8_t protocol = 0;  // IPPROTO_TCP or IPPROTO_UDP
  Endpoint local;
  Endpoint remote;
  std::uint64_t cgroup = 0;  // that it was made in; 0: not known
  std::uint64_t cookie = 0;  // which no other socket of its namespace ever has
  // The peer began it, as far as one can tell: somebody listens on the local port.
  bool accepted = false;
  inet_diag_sockid kernel_id{};
  std::uint8_t family = 0;
};

// The sockets of a network namespace, by the kernel's sock_diag(7). Not thread-safe.
class SocketDiag {
 public:
  [[nodiscard]] static std::expected<SocketDiag, std::error_code> open(
      const NetworkNamespace& network = {});

  // Every TCP socket that connects or is connected, and every UDP socket that is connected. Takes
  // as long as they are many; sockets that come and go meanwhile may be missing, or twice. The
  // cgroup is told since Linux 5.9.
  [[nodiscard]] std::expected<void, std::error_code> for_each(
      const std::function<void(const Connection&)>& visit);

  // Ends a connection: its owner finds ECONNABORTED, its peer a reset if it is TCP. ENOENT: it has
  // ended. EOPNOTSUPP: the kernel was built without INET_DIAG_DESTROY. Needs CAP_NET_ADMIN.
  [[nodiscard]] std::expected<void, std::error_code> destroy(const Connection& connection);

 private:
  struct Close {
    void operator()(mnl_socket* socket) const;
  };
  explicit SocketDiag(mnl_socket* socket) : socket_(socket) {}

  std::unique_ptr<mnl_socket, Close> socket_;
  std::uint32_t sequence_ = 0;
};

}  // namespace mapgate::sockets
