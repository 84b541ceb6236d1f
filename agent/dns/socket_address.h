// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "agent/dns/flow_source.h"

namespace mapgate::dns {

// A sockaddr_in or sockaddr_in6.
class SocketAddress {
 public:
  SocketAddress() = default;
  // An IPv4-mapped address gives a sockaddr_in.
  explicit SocketAddress(const Endpoint& endpoint);
  // What bind(2) takes for the loopback address of AF_INET or AF_INET6.
  [[nodiscard]] static SocketAddress loopback(int family, std::uint16_t port);

  [[nodiscard]] int family() const { return storage_.any.sa_family; }
  [[nodiscard]] Endpoint endpoint() const;

  // For system calls. `capacity` is what they may fill in.
  [[nodiscard]] sockaddr* data() { return &storage_.any; }
  [[nodiscard]] const sockaddr* data() const { return &storage_.any; }
  [[nodiscard]] socklen_t size() const;
  [[nodiscard]] static socklen_t capacity() { return sizeof(Storage); }

 private:
  union Storage {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  };
  Storage storage_{.v6 = {}};
};

}  // namespace mapgate::dns
