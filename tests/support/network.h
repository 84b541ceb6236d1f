// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/unique_fd.h"

namespace mapgate::test {

// A socket address of either family.
class Endpoint {
 public:
  Endpoint() = default;
  // `address` is an IPv4 or IPv6 literal. Throws std::invalid_argument.
  Endpoint(std::string_view address, std::uint16_t port);

  [[nodiscard]] static Endpoint local_of(int socket);
  // Where a socket's peer seems to be; family AF_UNSPEC if it has none.
  [[nodiscard]] static Endpoint peer_of(int socket);

  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const;
  // "192.0.2.1:53", "[2001:db8::1]:53"
  [[nodiscard]] std::string text() const;
  // IPv4 mapped into IPv6.
  [[nodiscard]] std::array<std::uint8_t, 16> mapped() const;

  [[nodiscard]] const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  [[nodiscard]] sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size() const;

 private:
  sockaddr_storage storage_{};
};

// A network namespace of its own for the calling thread and the children it makes: loopback up,
// with extra addresses. The thread returns to its old one on destruction. Needs root; throws
// std::system_error.
class NetworkNamespace {
 public:
  explicit NetworkNamespace(const std::vector<std::string>& addresses);
  NetworkNamespace(const NetworkNamespace&) = delete;
  NetworkNamespace& operator=(const NetworkNamespace&) = delete;
  ~NetworkNamespace();

 private:
  UniqueFd previous_;
};

// A bound socket (SOCK_STREAM: listening) that gives up receiving after `timeout`. Throws
// std::system_error.
[[nodiscard]] UniqueFd serve(int type, const Endpoint& at,
                             std::chrono::milliseconds timeout = std::chrono::seconds(5));

}  // namespace mapgate::test
