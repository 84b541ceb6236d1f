// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/socket_address.h"

#include <algorithm>
#include <cstring>

namespace mapgate::dns {

SocketAddress::SocketAddress(const Endpoint& endpoint) {
  const policy::IpAddress::Bytes& bytes = endpoint.address.bytes();
  if (endpoint.address.is_v4()) {
    storage_.v4 = {};
    storage_.v4.sin_family = AF_INET;
    storage_.v4.sin_port = htons(endpoint.port);
    std::memcpy(&storage_.v4.sin_addr, bytes.data() + 12, 4);
  } else {
    storage_.v6.sin6_family = AF_INET6;
    storage_.v6.sin6_port = htons(endpoint.port);
    std::memcpy(&storage_.v6.sin6_addr, bytes.data(), 16);
  }
}

SocketAddress SocketAddress::loopback(int family, std::uint16_t port) {
  SocketAddress result;
  if (family == AF_INET) {
    result.storage_.v4 = {};
    result.storage_.v4.sin_family = AF_INET;
    result.storage_.v4.sin_port = htons(port);
    result.storage_.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    result.storage_.v6.sin6_family = AF_INET6;
    result.storage_.v6.sin6_port = htons(port);
    result.storage_.v6.sin6_addr = in6addr_loopback;
  }
  return result;
}

Endpoint SocketAddress::endpoint() const {
  if (family() == AF_INET) {
    std::uint8_t octets[4];
    std::memcpy(octets, &storage_.v4.sin_addr, sizeof octets);
    return {policy::IpAddress::from_v4(octets), ntohs(storage_.v4.sin_port)};
  }
  policy::IpAddress::Bytes bytes;
  std::memcpy(bytes.data(), &storage_.v6.sin6_addr, bytes.size());
  return {policy::IpAddress(bytes), ntohs(storage_.v6.sin6_port)};
}

socklen_t SocketAddress::size() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace mapgate::dns
