// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/kernel_connections.h"

#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <utility>

#include "agent/datapath/environment.h"
#include "agent/engine/background.h"
#include "agent/engine/paths.h"
#include "agent/policy/address.h"

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

// Which workload a cgroup belongs to: the one that it, or a cgroup above it, is bound to.
class WorkloadsByCgroup {
 public:
  WorkloadsByCgroup(std::vector<datapath::Attachment> attachments, const fs::path& cgroup_root)
      : attachments_(std::move(attachments)), cgroup_root_(cgroup_root) {
    for (const datapath::Attachment& attachment : attachments_)
      known_.emplace(attachment.cgroup, attachment.workload);
  }

  // 0: none.
  WorkloadId find(std::uint64_t cgroup) {
    const auto [entry, is_new] = known_.emplace(cgroup, 0);
    if (is_new) entry->second = search(cgroup);
    return entry->second;
  }

 private:
  [[nodiscard]] WorkloadId search(std::uint64_t cgroup) const {
    const fs::path path = datapath::cgroup_path(cgroup_root_, cgroup);
    if (path.empty()) return 0;
    const auto holds = [&](const datapath::Attachment& attachment) {
      return !attachment.path.empty() && is_inside(path, attachment.path);
    };
    const auto found = std::ranges::find_if(attachments_, holds);
    return found == attachments_.end() ? 0 : found->workload;
  }

  std::vector<datapath::Attachment> attachments_;
  const fs::path& cgroup_root_;
  std::map<std::uint64_t, WorkloadId> known_;
};

bool is_proxy(const datapath::ProxyPorts& ports, const sockets::Connection& socket) {
  if (!policy::IpAddress(socket.remote.address).is_loopback()) return false;
  const std::uint16_t port = socket.remote.port;
  if (socket.protocol == IPPROTO_TCP) return port == ports.tcp4 || port == ports.tcp6;
  const auto has_port = [&](const auto& list) {
    return std::ranges::find(list, port) != list.end();
  };
  return has_port(ports.udp4) || has_port(ports.udp6);
}

}  // namespace

KernelConnections::KernelConnections(const datapath::Datapath& datapath, fs::path cgroup_root)
    : datapath_(datapath),
      cgroup_root_(std::move(cgroup_root)),
      diag_(sockets::SocketDiag::open()) {}

KernelConnections::~KernelConnections() {
  pool_.join();
}

asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>> KernelConnections::list() {
  using Found = std::expected<Sockets, std::error_code>;
  auto collect = [this]() -> Found {
    if (!diag_) return std::unexpected(diag_.error());
    Sockets found;
    const auto listed = diag_->for_each([&](const sockets::Connection& socket) {
      if (!socket.accepted) found.push_back(socket);
    });
    if (!listed) return std::unexpected(listed.error());
    return found;
  };
  const Found sockets = co_await run_in_background(pool_, std::move(collect));
  if (!sockets) co_return std::unexpected("sock_diag: " + sockets.error().message());
  co_return of_workloads(*sockets);
}

std::vector<OpenConnection> KernelConnections::of_workloads(const Sockets& sockets) const {
  WorkloadsByCgroup workloads(datapath_.attachments(), cgroup_root_);
  const datapath::ProxyPorts proxy = datapath_.proxy_ports(datapath::kUnknownNetwork);
  std::vector<OpenConnection> result;
  for (const sockets::Connection& socket : sockets) {
    if (socket.cgroup == 0 || is_proxy(proxy, socket)) continue;
    if (const WorkloadId workload = workloads.find(socket.cgroup); workload != 0)
      result.push_back({workload, socket});
  }
  return result;
}

Connections::PortSets KernelConnections::port_sets(const OpenConnection& connection) {
  const sockets::Connection& socket = connection.socket;
  const auto sets = datapath_.port_sets(connection.workload, socket.remote.address, socket.protocol,
                                        socket.remote.port);
  return {sets.of_address, sets.of_port};
}

asio::awaitable<Connections::Results> KernelConnections::end(Sockets connections) {
  auto work = [this, connections = std::move(connections)] {
    Results results;
    results.reserve(connections.size());
    for (const sockets::Connection& connection : connections)
      results.push_back(diag_->destroy(connection));
    return results;
  };
  co_return co_await run_in_background(pool_, std::move(work));
}

}  // namespace mapgate::engine
