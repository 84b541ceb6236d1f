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
#include "agent/engine/connections.h"
#include "agent/sockets/socket_diag.h"

namespace mapgate::engine {

// The connections of the network namespace that it is made in. Lists and ends them on a thread of
// its own, since there may be very many.
class KernelConnections final : public Connections {
 public:
  // `datapath` outlives it. Without sock_diag every list() is an error.
  KernelConnections(const datapath::Datapath& datapath, std::filesystem::path cgroup_root);
  ~KernelConnections() override;

  [[nodiscard]] boost::asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>>
  list() override;
  [[nodiscard]] PortSets port_sets(const OpenConnection& connection) override;
  [[nodiscard]] boost::asio::awaitable<Results> end(
      std::vector<sockets::Connection> connections) override;

 private:
  using Sockets = std::vector<sockets::Connection>;
  [[nodiscard]] std::vector<OpenConnection> of_workloads(const Sockets& sockets) const;

  const datapath::Datapath& datapath_;
  const std::filesystem::path cgroup_root_;
  std::expected<sockets::SocketDiag, std::error_code> diag_;  // for the thread of pool_
  boost::asio::thread_pool pool_{1};
};

}  // namespace mapgate::engine
