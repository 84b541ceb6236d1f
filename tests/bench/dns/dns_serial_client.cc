// SPDX-License-Identifier: Apache-2.0
// Asks one resolver for the A records of many names, one after the other over one UDP socket, and
// measures the round trips:
//   dns_serial_client RESOLVER[@PORT] NAMES-FILE [PAUSE]
// PAUSE is in microseconds, after each answer. Prints the round trips in microseconds, in order, as
// a JSON array. Exits with 1 unless every name has an answer with addresses.
#include <arpa/inet.h>
#include <ldns/ldns.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTimeoutMs = 5000;

std::system_error system_error(const char* what) {
  return std::system_error(errno, std::generic_category(), what);
}

// A UDP socket that is connected to "ADDRESS" or "ADDRESS@PORT".
int connect_to(const std::string& resolver) {
  const std::size_t at = resolver.find('@');
  const std::string address = resolver.substr(0, at);
  const auto port =
      static_cast<in_port_t>(at == std::string::npos ? 53 : std::stoul(resolver.substr(at + 1)));
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) != 1)
    throw std::invalid_argument(resolver + " is no address");
  const int fd = ::socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw system_error("socket");
  const auto* to =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  if (::connect(fd, to, is_v4 ? sizeof v4 : sizeof v6) != 0) throw system_error("connect");
  return fd;
}

std::vector<std::uint8_t> query_for(const std::string& name, std::uint16_t id) {
  ldns_pkt* packet = nullptr;
  if (ldns_pkt_query_new_frm_str(&packet, name.c_str(), LDNS_RR_TYPE_A, LDNS_RR_CLASS_IN,
                                 LDNS_RD) != LDNS_STATUS_OK)
    throw std::invalid_argument(name + " is no name");
  const std::unique_ptr<ldns_pkt, decltype(&ldns_pkt_free)> owner(packet, ldns_pkt_free);
  ldns_pkt_set_id(packet, id);
  std::uint8_t* wire = nullptr;
  std::size_t size = 0;
  if (ldns_pkt2wire(&wire, packet, &size) != LDNS_STATUS_OK) throw std::bad_alloc();
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> wire_owner(wire, std::free);
  return {wire, wire + size};
}

// Sends the query and waits for the answer with its id.
Clock::duration round_trip(int fd, const std::string& name, std::uint16_t id) {
  const std::vector<std::uint8_t> query = query_for(name, id);
  std::uint8_t answer[65536];
  const Clock::time_point begin = Clock::now();
  if (::send(fd, query.data(), query.size(), 0) < 0) throw system_error("send");
  for (;;) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kTimeoutMs) == 0) throw std::runtime_error(name + ": no answer");
    const ssize_t size = ::recv(fd, answer, sizeof answer, 0);
    if (size < 0) throw system_error("recv");
    const Clock::time_point end = Clock::now();
    if (size < LDNS_HEADER_SIZE || LDNS_ID_WIRE(answer) != id) continue;
    if (LDNS_RCODE_WIRE(answer) != LDNS_RCODE_NOERROR || LDNS_ANCOUNT(answer) == 0)
      throw std::runtime_error(name + ": response code " + std::to_string(LDNS_RCODE_WIRE(answer)) +
                               ", or no addresses");
    return end - begin;
  }
}

double micros(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: dns_serial_client RESOLVER[@PORT] NAMES-FILE [PAUSE]\n");
    return 2;
  }
  const int fd = connect_to(argv[1]);
  std::ifstream names(argv[2]);
  const std::chrono::microseconds pause(argc == 4 ? std::stoul(argv[3]) : 0);
  std::vector<Clock::duration> times;
  std::uint16_t id = 0;
  for (std::string name; std::getline(names, name);) {
    times.push_back(round_trip(fd, name, ++id));
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
  ::close(fd);
  if (times.empty()) throw std::runtime_error(std::string(argv[2]) + ": no names");
  const char* before = "[";
  for (const Clock::duration time : times) {
    std::printf("%s%.2f", before, micros(time));
    before = ", ";
  }
  std::printf("]\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "dns_serial_client: %s\n", error.what());
  return 1;
}
