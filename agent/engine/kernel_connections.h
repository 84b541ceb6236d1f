// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "agent/datapath/datapath.h"
#include "agent/datapath/network_cookie.h"
#include "agent/engine/connections.h"
#include "agent/sockets/socket_diag.h"

namespace mapgate::engine {

// The connections of every network namespace that processes of workloads are in, and of the
// daemon's. Lists and ends them on a thread of its own, since there may be very many.
class KernelConnections final : public Connections {
 public:
  // `datapath` outlives it.
  KernelConnections(const datapath::Datapath& datapath, std::filesystem::path cgroup_root);
  ~KernelConnections() override;

  [[nodiscard]] boost::asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>>
  list() override;
  [[nodiscard]] PortSets port_sets(const OpenConnection& connection) override;
  [[nodiscard]] boost::asio::awaitable<Results> end(
      std::vector<OpenConnection> connections) override;

 private:
  // What one network namespace has.
  struct Found {
    std::uint64_t inode = 0;
    datapath::NetworkCookie cookie = datapath::kUnknownNetwork;
    std::vector<sockets::Connection> sockets;
  };
  [[nodiscard]] std::vector<OpenConnection> of_workloads(const std::vector<Found>& networks) const;

  const datapath::Datapath& datapath_;
  const std::filesystem::path cgroup_root_;
  boost::asio::thread_pool pool_{1};
};

}  // namespace mapgate::engine
