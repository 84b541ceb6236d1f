// SPDX-License-Identifier: Apache-2.0
#include "tests/support/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace mapgate::test {
namespace {

void check(int result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

// The kernel's struct in6_ifreq; its header does not go together with netinet/in.h.
struct Ipv6AddressRequest {
  in6_addr address;
  std::uint32_t prefix_length;
  int interface;
};

void bring_loopback_up() {
  UniqueFd control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  check(::ioctl(control.get(), SIOCSIFFLAGS, &request), "bring lo up");
}

// The kernel ends duplicate address detection on a thread of its own, on lo too; before that
// nothing can bind to the address.
void wait_until_bindable(const Endpoint& endpoint) {
  UniqueFd socket(::socket(endpoint.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (::bind(socket.get(), endpoint.address(), endpoint.size()) != 0) {
    if (errno != EADDRNOTAVAIL || std::chrono::steady_clock::now() > deadline) {
      check(-1, "bind " + endpoint.text());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void add_address(const Endpoint& endpoint, int number) {
  UniqueFd control(::socket(endpoint.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (endpoint.family() == AF_INET) {
    ifreq request{};
    std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo:%d", number);
    std::memcpy(&request.ifr_addr, endpoint.address(), sizeof request.ifr_addr);
    check(::ioctl(control.get(), SIOCSIFADDR, &request), "add " + endpoint.text());
  } else {
    Ipv6AddressRequest request{};
    std::ranges::copy(endpoint.mapped(), request.address.s6_addr);
    request.prefix_length = 128;
    request.interface = 1;  // lo is always the first
    check(::ioctl(control.get(), SIOCSIFADDR, &request), "add " + endpoint.text());
    wait_until_bindable(endpoint);
  }
}

}  // namespace

Endpoint::Endpoint(std::string_view address, std::uint16_t port) {
  const std::string text(address);
  auto* ipv4 = reinterpret_cast<sockaddr_in*>(&storage_);
  auto* ipv6 = reinterpret_cast<sockaddr_in6*>(&storage_);
  if (::inet_pton(AF_INET, text.c_str(), &ipv4->sin_addr) == 1) {
    ipv4->sin_family = AF_INET;
    ipv4->sin_port = htons(port);
  } else if (::inet_pton(AF_INET6, text.c_str(), &ipv6->sin6_addr) == 1) {
    ipv6->sin6_family = AF_INET6;
    ipv6->sin6_port = htons(port);
  } else {
    throw std::invalid_argument("not an address: " + text);
  }
}

Endpoint Endpoint::local_of(int socket) {
  Endpoint result;
  socklen_t size = sizeof result.storage_;
  check(::getsockname(socket, result.address(), &size), "getsockname");
  return result;
}

Endpoint Endpoint::peer_of(int socket) {
  Endpoint result;
  socklen_t size = sizeof result.storage_;
  if (::getpeername(socket, result.address(), &size) != 0) return {};
  return result;
}

std::uint16_t Endpoint::port() const {
  // Both families keep the port at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string Endpoint::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, buffer.data(),
                buffer.size());
    return std::string(buffer.data()) + ":" + std::to_string(port());
  }
  if (family() != AF_INET6) return "none";
  ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, buffer.data(),
              buffer.size());
  std::string result = "[";
  result.append(buffer.data()).append("]:").append(std::to_string(port()));
  return result;
}

std::array<std::uint8_t, 16> Endpoint::mapped() const {
  std::array<std::uint8_t, 16> result{};
  if (family() == AF_INET) {
    result[10] = result[11] = 0xff;
    std::memcpy(&result[12], &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, 4);
  } else {
    std::memcpy(result.data(), &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, 16);
  }
  return result;
}

socklen_t Endpoint::size() const {
  if (family() == AF_UNSPEC) return sizeof storage_;
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

NetworkNamespace::NetworkNamespace(const std::vector<std::string>& addresses)
    : previous_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
  check(previous_.get(), "open the network namespace");
  check(::unshare(CLONE_NEWNET), "make a network namespace");
  try {
    bring_loopback_up();
    int number = 0;
    for (const std::string& address : addresses) add_address(Endpoint(address, 0), number++);
  } catch (...) {
    (void)::setns(previous_.get(), CLONE_NEWNET);
    throw;
  }
}

NetworkNamespace::~NetworkNamespace() {
  (void)::setns(previous_.get(), CLONE_NEWNET);
}

UniqueFd serve(int type, const Endpoint& at, std::chrono::milliseconds timeout) {
  UniqueFd socket(::socket(at.family(), type | SOCK_CLOEXEC, 0));
  check(socket.get(), "socket");
  const int on = 1;
  check(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "SO_REUSEADDR");
  const timeval limit{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  check(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
  check(::bind(socket.get(), at.address(), at.size()), "bind " + at.text());
  if (type == SOCK_STREAM) check(::listen(socket.get(), 64), "listen");
  return socket;
}

}  // namespace mapgate::test
