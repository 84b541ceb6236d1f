// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <system_error>
#include <vector>

#include <boost/asio/awaitable.hpp>

#include "agent/engine/enforcement.h"
#include "agent/sockets/socket_diag.h"

namespace mapgate::engine {

struct OpenConnection {
  WorkloadId workload = 0;
  std::uint64_t network = 0;  // the inode of its namespace
  sockets::Connection socket;
};

// What the workloads' processes are connected to, and an end to it. Errors are one line for people.
class Connections {
 public:
  virtual ~Connections() = default;

  // Those that processes in attached cgroups began, the proxy's aside.
  [[nodiscard]] virtual boost::asio::awaitable<
      std::expected<std::vector<OpenConnection>, std::string>>
  list() = 0;

  // What the kernel's maps hold for its workload now. A connection may be made if the two share a
  // bit.
  struct PortSets {
    std::uint64_t of_address = 0;
    std::uint64_t of_port = 0;
  };
  [[nodiscard]] virtual PortSets port_sets(const OpenConnection& connection) = 0;

  // One result for each, see sockets::SocketDiag::destroy().
  using Results = std::vector<std::expected<void, std::error_code>>;
  [[nodiscard]] virtual boost::asio::awaitable<Results> end(
      std::vector<OpenConnection> connections) = 0;
};

}  // namespace mapgate::engine
