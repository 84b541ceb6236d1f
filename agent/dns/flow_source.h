// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <system_error>

#include "agent/dns/answer_gate.h"
#include "agent/policy/address.h"

namespace mapgate::dns {

enum class Transport : std::uint8_t { kUdp, kTcp };

// An address and a port in host byte order. IPv4 addresses are IPv4-mapped.
struct Endpoint {
  policy::IpAddress address;
  std::uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// What FlowSource calls a network namespace.
using NetworkId = std::uint64_t;

// How a query reached the proxy.
struct FlowKey {
  Transport transport = Transport::kUdp;
  std::uint32_t slot = 0;  // which of the proxy's UDP ports; TCP: 0
  Endpoint client;
  NetworkId network = 0;  // the client's: others have clients at the same address and port
};

// Who asked, and whom.
struct Flow {
  WorkloadId workload = 0;
  Endpoint resolver;
};

// What a DNS session asks of the datapath. Called in the proxy's thread only.
class FlowSource {
 public:
  virtual ~FlowSource() = default;

  // Empty: nothing was steered here from that client, or too long ago.
  [[nodiscard]] virtual std::optional<Flow> find(const FlowKey& key) = 0;

  // Exempts a socket of the proxy's own from steering and policy. On failure it must not be used.
  [[nodiscard]] virtual std::expected<void, std::error_code> mark_own_socket(int socket) = 0;
};

}  // namespace mapgate::dns
