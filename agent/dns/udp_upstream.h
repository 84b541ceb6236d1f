// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <boost/functional/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <expected>
#include <memory>
#include <vector>

#include "agent/dns/datagrams.h"
#include "agent/dns/flow_source.h"
#include "agent/dns/socket_shares.h"
#include "agent/dns/upstream.h"
#include "agent/sockets/network_namespace.h"

namespace mapgate::dns {

// Forwards queries over UDP. Each resolver has a few connected sockets with ports that the kernel
// chose at random; a query takes a random one of them, and each is replaced after some queries or
// some time, so that an attacker off the path has to guess id and port (RFC 5452).
//
// All workloads use a resolver's sockets; each counts against the one whose query opened it.
class UdpUpstream final : public Upstream {
 public:
  // Sends from `network`.
  UdpUpstream(boost::asio::io_context& io, sockets::NetworkNamespace network, SocketShares& shares,
              FlowSource& flows, RandomSource& random, DatagramReceiver& receiver,
              SendBatches& batches, Deadlines& deadlines, UpstreamCounters& counters);
  ~UdpUpstream();

  void start(Exchange& exchange) override;
  // The clients have gone: finishes everything with kAbandoned, and closes the sockets.
  void abandon();

 private:
  class Socket;
  static constexpr std::size_t kSocketsPerResolver = 4;
  using Sockets = std::array<std::unique_ptr<Socket>, kSocketsPerResolver>;
  struct EndpointHash {
    std::size_t operator()(const Endpoint& endpoint) const {
      std::size_t seed = hash_value(endpoint.address);
      boost::hash_combine(seed, endpoint.port);
      return seed;
    }
  };

  // The socket for the query, or why there is none.
  std::expected<Socket*, ExchangeStatus> choose(WorkloadId workload, const Endpoint& resolver);
  std::unique_ptr<Socket> open(WorkloadId workload, const Endpoint& resolver);
  void close(Socket& socket);
  void retire(std::unique_ptr<Socket>& socket);
  // Retires the sockets that are old, and closes the retired ones that wait for nothing.
  void sweep();

  boost::asio::io_context& io_;
  const sockets::NetworkNamespace network_;
  SocketShares& shares_;
  FlowSource& flows_;
  RandomSource& random_;
  DatagramReceiver& receiver_;
  SendBatches& batches_;
  Deadlines& deadlines_;
  UpstreamCounters& counters_;
  boost::unordered_flat_map<Endpoint, Sockets, EndpointHash> resolvers_;
  std::vector<std::unique_ptr<Socket>> retired_;
  Alarm sweep_alarm_;
};

}  // namespace mapgate::dns
