// SPDX-License-Identifier: Apache-2.0
#include "tests/dns/fake_world.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>

namespace mapgate::test {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

Socket bound(int family, int type, std::uint16_t port) {
  Socket socket(sockets::NetworkNamespace().open_socket(family, type));
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const dns::SocketAddress address = dns::SocketAddress::loopback(family, port);
  if (::bind(socket.fd(), address.data(), address.size()) != 0) return {};
  return socket;
}

dns::Endpoint local_endpoint(int fd) {
  dns::SocketAddress address;
  socklen_t size = dns::SocketAddress::capacity();
  require(getsockname(fd, address.data(), &size) == 0, "getsockname");
  return address.endpoint();
}

std::vector<std::uint8_t> framed(const dns::Message& message) {
  std::vector<std::uint8_t> result{static_cast<std::uint8_t>(message.size() >> 8),
                                   static_cast<std::uint8_t>(message.size())};
  result.insert(result.end(), message.begin(), message.end());
  return result;
}

// Loopback takes what tests send at once, or nearly so.
void send_all(int fd, std::span<const std::uint8_t> data) {
  while (!data.empty()) {
    const ssize_t size = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EAGAIN) continue;
    if (size < 0) return;
    data = data.subspan(static_cast<std::size_t>(size));
  }
}

// Appends what has come; false at the end of the stream.
bool read_available(int fd, std::vector<std::uint8_t>& input) {
  std::array<std::uint8_t, 65536> buffer;
  for (;;) {
    const ssize_t size = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN;
    if (size == 0) return false;
    input.insert(input.end(), buffer.begin(), buffer.begin() + size);
  }
}

std::optional<dns::Message> take_framed(std::vector<std::uint8_t>& input) {
  if (input.size() < 2) return std::nullopt;
  const auto size = static_cast<std::ptrdiff_t>(input[0] << 8 | input[1]);
  if (static_cast<std::ptrdiff_t>(input.size()) < size + 2) return std::nullopt;
  dns::Message message(input.begin() + 2, input.begin() + 2 + size);
  input.erase(input.begin(), input.begin() + 2 + size);
  return message;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

FakeResolver::FakeResolver(int family) {
  // The TCP port of the same number may be taken: try others.
  for (int attempt = 0; attempt < 100 && listener_.fd() < 0; ++attempt) {
    udp_ = bound(family, SOCK_DGRAM, 0);
    require(udp_.fd() >= 0, "no UDP port");
    endpoint_ = local_endpoint(udp_.fd());
    listener_ = bound(family, SOCK_STREAM, endpoint_.port);
  }
  require(listener_.fd() >= 0 && ::listen(listener_.fd(), 64) == 0, "no TCP port");
  behaviour_ = [](const dns::Message& query) {
    return Messages{MessageBuilder::response_to(query).a("a.test", 60, "192.0.2.1").bytes()};
  };
}

void FakeResolver::poll() {
  std::array<std::uint8_t, 65536> buffer;
  for (;;) {
    dns::SocketAddress from;
    socklen_t length = dns::SocketAddress::capacity();
    const ssize_t size =
        ::recvfrom(udp_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT, from.data(), &length);
    if (size < 0) break;
    last_client_ = from;
    ports.push_back(from.endpoint().port);
    queries.emplace_back(buffer.begin(), buffer.begin() + size);
    for (const dns::Message& answer : behaviour_(queries.back())) send(answer);
  }
  for (;;) {
    Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() < 0) break;
    ++connections;
    connections_.push_back({std::move(socket), {}});
  }
  for (Connection& connection : connections_) poll_connection(connection);
}

void FakeResolver::poll_connection(Connection& connection) {
  static_cast<void>(read_available(connection.socket.fd(), connection.input));
  while (auto query = take_framed(connection.input)) {
    queries.push_back(*query);
    for (const dns::Message& answer : behaviour_(queries.back()))
      send_all(connection.socket.fd(), framed(answer));
  }
}

void FakeResolver::stop() {
  connections_.clear();
  udp_ = {};
  listener_ = {};
}

void FakeResolver::spoof(const dns::Message& message) {
  const Socket other = bound(last_client_.family(), SOCK_DGRAM, 0);
  ::sendto(other.fd(), message.data(), message.size(), 0, last_client_.data(), last_client_.size());
}

void FakeResolver::send(const dns::Message& message) {
  ::sendto(udp_.fd(), message.data(), message.size(), 0, last_client_.data(), last_client_.size());
}

void FakeGate::hold(const dns::HoldRequest& request, dns::HoldCallback done) {
  held.push_back({request.workload,
                  std::string(request.name),
                  {request.addresses.begin(), request.addresses.end()},
                  std::move(done)});
  if (open_at_once) finish(dns::HoldOutcome::kOpened);
}

void FakeGate::finish(dns::HoldOutcome outcome) {
  Held first = std::move(held.front());
  held.erase(held.begin());
  first.done({.outcome = outcome, .revision = 42});
}

FakeClient::FakeClient(int family, int type, std::uint16_t port)
    : socket_(::socket(family, type, 0)), stream_(type == SOCK_STREAM) {
  const dns::SocketAddress address = dns::SocketAddress::loopback(family, port);
  require(::connect(socket_.fd(), address.data(), address.size()) == 0, "connect to the proxy");
}

void FakeClient::send(const dns::Message& message) {
  send_all(socket_.fd(), stream_ ? framed(message) : message);
}

void FakeClient::send_raw(std::span<const std::uint8_t> data) {
  send_all(socket_.fd(), data);
}

void FakeClient::finish_sending() {
  ::shutdown(socket_.fd(), SHUT_WR);
}

void FakeClient::read() {
  if (stream_ && !closed_) closed_ = !read_available(socket_.fd(), input_);
}

std::optional<dns::Message> FakeClient::receive() {
  if (stream_) {
    read();
    return take_framed(input_);
  }
  dns::Message buffer(65536);
  const ssize_t size = ::recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (size < 0) return std::nullopt;
  buffer.resize(static_cast<std::size_t>(size));
  return buffer;
}

bool FakeClient::closed() {
  read();
  return closed_;
}

std::uint16_t FakeClient::port() const {
  return local_endpoint(socket_.fd()).port;
}

FakeWorld::FakeWorld(dns::ProxyOptions options, int resolver_family) : resolver(resolver_family) {
  flows.flow = {1, resolver.endpoint()};
  auto made = dns::Proxy::create(io, options, flows, gate, random);
  if (!made) throw std::runtime_error(made.error());
  proxy = std::move(*made);
}

bool FakeWorld::run_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    io.restart();
    // Not long: the resolver and the test are waiting too.
    if (io.poll() == 0) io.run_one_for(std::chrono::microseconds(100));
    resolver.poll();
  }
  return true;
}

void FakeWorld::run_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  static_cast<void>(run_until([&] { return std::chrono::steady_clock::now() > end; }));
}

std::optional<dns::Message> FakeWorld::await(FakeClient& client) {
  std::optional<dns::Message> message;
  static_cast<void>(run_until([&] {
    message = client.receive();
    return message.has_value();
  }));
  return message;
}

}  // namespace mapgate::test
