// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/dns/proxy.h"
#include "agent/dns/socket_address.h"
#include "tests/dns/message_builder.h"

namespace mapgate::test {

using Messages = std::vector<dns::Message>;

// Closes a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// A resolver on a loopback address, UDP and TCP on one port. What it does with a query is the
// test's choice.
class FakeResolver {
 public:
  // Each message returned is sent to the client, in order.
  using Behaviour = std::function<Messages(const dns::Message&)>;

  explicit FakeResolver(int family);

  [[nodiscard]] dns::Endpoint endpoint() const { return endpoint_; }
  void answer_with(Behaviour behaviour) { behaviour_ = std::move(behaviour); }
  // Does what is to be done now.
  void poll();
  void close_connections() { connections_.clear(); }
  void stop();

  // The queries that came, in order; and from which ports.
  Messages queries;
  std::vector<std::uint16_t> ports;
  std::size_t connections = 0;
  // Sends a datagram to the port that asked last, from another socket.
  void spoof(const dns::Message& message);
  // Sends one from the right socket.
  void send(const dns::Message& message);

 private:
  struct Connection {
    Socket socket;
    std::vector<std::uint8_t> input;
  };
  void poll_connection(Connection& connection);

  dns::Endpoint endpoint_;
  Socket udp_;
  Socket listener_;
  dns::SocketAddress last_client_;
  std::vector<Connection> connections_;
  Behaviour behaviour_;
};

// Every client belongs to workload 1 unless told otherwise, and asked `resolver`.
class FakeFlows final : public dns::FlowSource {
 public:
  std::optional<dns::Flow> find(const dns::FlowKey& key) override {
    keys.push_back(key);
    return flow;
  }
  std::expected<void, std::error_code> mark_own_socket(int socket) override {
    marked.push_back(socket);
    if (mark_error) return std::unexpected(mark_error);
    return {};
  }

  std::optional<dns::Flow> flow;
  std::error_code mark_error;
  std::vector<dns::FlowKey> keys;
  std::vector<int> marked;
};

class FakeGate final : public dns::AnswerGate {
 public:
  struct Held {
    dns::WorkloadId workload;
    std::string name;
    std::vector<dns::LearnedAddress> addresses;
    dns::HoldCallback done;
  };
  struct Record {
    std::string name;
    std::size_t addresses;
    dns::AnswerRecord record;
  };

  dns::Verdict judge(dns::WorkloadId, std::string_view name) override {
    judged.emplace_back(name);
    return verdict;
  }
  bool may_ask(dns::WorkloadId, const policy::IpAddress&) override { return resolver_allowed; }
  void denied(const dns::DeniedQuery& query) override {
    denials.push_back({std::string(query.name), query});
  }
  void hold(const dns::HoldRequest& request, dns::HoldCallback done) override;
  void answered(const dns::AnswerRecord& record) override {
    records.push_back({std::string(record.name), record.addresses.size(), record});
  }
  // Ends the oldest hold.
  void finish(dns::HoldOutcome outcome);

  dns::Verdict verdict{.may_resolve = true};
  bool resolver_allowed = true;
  bool open_at_once = false;
  std::vector<std::pair<std::string, dns::DeniedQuery>> denials;  // by name
  std::vector<std::string> judged;
  std::vector<Held> held;
  std::vector<Record> records;
};

// A client's socket, connected to one of the proxy's ports.
class FakeClient {
 public:
  FakeClient(int family, int type, std::uint16_t port);

  void send(const dns::Message& message);             // UDP: a datagram; TCP: with its length
  void send_raw(std::span<const std::uint8_t> data);  // TCP: as it is
  void finish_sending();
  // What has come by now; empty if nothing (whole) has.
  [[nodiscard]] std::optional<dns::Message> receive();
  [[nodiscard]] bool closed();  // TCP: the proxy has closed
  [[nodiscard]] std::uint16_t port() const;

 private:
  void read();

  Socket socket_;
  bool stream_;
  bool closed_ = false;
  std::vector<std::uint8_t> input_;
};

// A proxy with all of these around it, in one thread.
class FakeWorld {
 public:
  explicit FakeWorld(dns::ProxyOptions options = {}, int resolver_family = AF_INET);

  // Runs the proxy and the resolver until the condition holds; false after five seconds.
  [[nodiscard]] bool run_until(const std::function<bool()>& condition);
  // Runs them for a while.
  void run_for(std::chrono::milliseconds time);
  // The client's next message; empty after five seconds.
  [[nodiscard]] std::optional<dns::Message> await(FakeClient& client);

  boost::asio::io_context io;
  FakeResolver resolver;
  FakeFlows flows;
  FakeGate gate;
  dns::SystemRandom random;
  std::unique_ptr<dns::Proxy> proxy;
};

}  // namespace mapgate::test
