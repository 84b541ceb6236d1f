// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>

#include "agent/datapath/proxy_ports.h"
#include "agent/dns/answer_gate.h"
#include "agent/dns/flow_source.h"
#include "agent/dns/message.h"
#include "agent/dns/random_source.h"
#include "agent/sockets/network_namespace.h"

namespace boost::asio {
class io_context;
}

namespace mapgate::dns {

// Where the datapath steers to. A port of 0: the family is not served.
using datapath::ProxyPorts;

struct ProxyOptions {
  NetworkId network = 0;  // the process's own
  // Asked for first, so that a restart keeps them; one that is 0 or taken becomes any free one.
  ProxyPorts preferred_ports;
  // How long a resolver may take; then the client's own retry is the answer.
  std::chrono::milliseconds upstream_timeout{5000};
  // A client's TCP connection without a query, and its connection upstream, last this long.
  std::chrono::milliseconds tcp_idle_timeout{10000};
  // Larger queries are dropped.
  std::size_t max_query_size = 4096;
  // Queries in work. Beyond these a query is answered with SERVFAIL.
  std::size_t max_sessions = 8192;
  std::size_t max_sessions_per_workload = 2048;
  // Beyond these a new TCP connection is closed at once.
  std::size_t max_tcp_connections = 1024;
  std::size_t max_tcp_connections_per_workload = 128;
  // Sockets to resolvers. At a limit an idle one makes room for a new one, or else one of the
  // workload that has the most; if there is none either, the query is answered with SERVFAIL.
  std::size_t max_upstream_sockets = 512;
  std::size_t max_upstream_sockets_per_workload = 64;
  // Queries of one TCP connection in work; beyond, it is not read from.
  std::size_t max_pipelined = 64;
};

// What the proxy saw, since its start.
struct ProxyCounters {
  std::uint64_t queries_udp = 0;
  std::uint64_t queries_tcp = 0;
  std::uint64_t tcp_connections = 0;
  // Queries that got no answer at all.
  std::uint64_t malformed = 0;       // no DNS query
  std::uint64_t oversized = 0;       // larger than max_query_size
  std::uint64_t unknown_flows = 0;   // from a client that was not steered here
  std::uint64_t denied_dropped = 0;  // the name is denied, and the policy wants no answer
  // Queries that the proxy answered itself.
  std::uint64_t format_errors = 0;      // several questions in one message, or none
  std::uint64_t not_implemented = 0;    // another operation than a query, or a zone transfer
  std::uint64_t refused = 0;            // the policy does not let the workload resolve the name
  std::uint64_t denied_nxdomain = 0;    // likewise, where the policy wants NXDOMAIN
  std::uint64_t resolvers_refused = 0;  // the policy does not let the workload ask this resolver
  std::uint64_t audited = 0;            // would have been denied, but for audit mode
  std::uint64_t overloaded = 0;         // a limit on sessions was reached
  std::uint64_t upstream_failures = 0;  // no socket, or the resolver's port is closed
  std::uint64_t upstream_limited = 0;   // the workload's share of sockets is used up
  // Answers of resolvers.
  std::uint64_t upstream_timeouts = 0;
  std::uint64_t answers_unmatched = 0;       // no query in work has this id; dropped
  std::uint64_t answers_wrong_question = 0;  // the query of this id asked something else; dropped
  std::uint64_t answers_malformed = 0;       // dropped
  std::uint64_t answers_servfail = 0;        // the resolver itself says SERVFAIL; passed on
  std::uint64_t answers_passed = 0;          // without addresses: nothing to hold
  std::uint64_t answers_released = 0;        // after their hold opened
  // Holds that did not open, and what the client got.
  std::uint64_t holds_timed_out = 0;
  std::uint64_t holds_overloaded = 0;  // too many answers are held: SERVFAIL, whatever the policy
  std::uint64_t holds_failed = 0;      // any other outcome
  std::uint64_t held_released = 0;
  std::uint64_t held_servfail = 0;
  std::uint64_t held_dropped = 0;
  // The network.
  std::uint64_t tcp_rejected = 0;   // connections beyond a limit, or not steered here
  std::uint64_t send_failures = 0;  // replies that the kernel did not take
};

// The DNS proxy that workloads' queries are steered to. For every query it finds who asked whom,
// asks the gate whether the name may be resolved, forwards the query to that resolver, and holds
// the answer until the kernel has its addresses. Answers pass unchanged but for their id.
//
// Runs in the thread of `io`. The sources it is made with outlive it. Destroying it drops all work.
class Proxy {
 public:
  // The error says which socket could not be had, and why.
  [[nodiscard]] static std::expected<std::unique_ptr<Proxy>, std::string> create(
      boost::asio::io_context& io, const ProxyOptions& options, FlowSource& flows, AnswerGate& gate,
      RandomSource& random);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Of the process's own network.
  [[nodiscard]] const ProxyPorts& ports() const;

  // Listens in another network namespace too, which lives as long as this does; queries from there
  // are asked from there, because their resolver may be reachable from nowhere else. Loopback need
  // not be up yet. The ports, or which socket could not be had. `id` is not served so far.
  [[nodiscard]] std::expected<ProxyPorts, std::string> add_network(
      NetworkId id, sockets::NetworkNamespace network, const ProxyPorts& preferred);
  // Closes what is open there; queries in work get no answer.
  void remove_network(NetworkId id);
  // A query over UDP that came to a port of `id` before add_network(). Nothing happens if it is not
  // served.
  void take_query(NetworkId id, std::uint32_t slot, const Endpoint& client, MessageView query);
  [[nodiscard]] ProxyCounters counters() const;
  [[nodiscard]] std::size_t sessions() const;  // queries in work

 private:
  class Implementation;
  explicit Proxy(std::unique_ptr<Implementation> implementation);

  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mapgate::dns
