// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "agent/dns/flow_source.h"
#include "agent/dns/tcp_stream.h"
#include "agent/dns/upstream.h"
#include "agent/sockets/network_namespace.h"

namespace mapgate::dns {

// Forwards the queries of one client's TCP connection over one connection to its resolver, which is
// opened when it is needed (RFC 7766). Queries that a connection loses which has answered before
// are sent once more over a new one: a resolver may close an idle connection at any time.
class TcpUpstream final : public Upstream {
 public:
  // Connects from `network`.
  TcpUpstream(boost::asio::io_context& io, sockets::NetworkNamespace network, FlowSource& flows,
              RandomSource& random, Deadlines& deadlines, UpstreamCounters& counters);
  ~TcpUpstream();

  void start(Exchange& exchange) override;
  // The client has gone: finishes everything, now and later, with kAbandoned.
  void abandon();

 private:
  [[nodiscard]] bool connect(const Endpoint& resolver);
  void on_lost();
  void drop_connection();

  boost::asio::io_context& io_;
  const sockets::NetworkNamespace network_;
  FlowSource& flows_;
  Deadlines& deadlines_;
  PendingQueries pending_;
  std::shared_ptr<TcpStream> stream_;
  bool has_answered_ = false;  // on this connection
  bool abandoned_ = false;
};

}  // namespace mapgate::dns
