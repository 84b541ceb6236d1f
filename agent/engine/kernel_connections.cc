// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/kernel_connections.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "agent/datapath/environment.h"
#include "agent/engine/background.h"
#include "agent/engine/paths.h"
#include "agent/engine/workload_networks.h"
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

// By inode: the daemon's own, and those that threads in the cgroups are in.
std::map<std::uint64_t, sockets::NetworkNamespace> networks_of(
    const std::vector<WorkloadCgroup>& cgroups) {
  std::map<std::uint64_t, sockets::NetworkNamespace> networks;
  networks.emplace(sockets::network_inode(getpid()).value_or(0), sockets::NetworkNamespace());
  for (const auto& [inode, found] : find_networks(cgroups)) {
    if (networks.contains(inode)) continue;
    if (auto network = sockets::NetworkNamespace::of_thread(found.thread))
      networks.emplace(inode, std::move(*network));
  }
  return networks;
}

datapath::NetworkCookie cookie_of(const sockets::NetworkNamespace& network) {
  const UniqueFd socket(network.open_socket(AF_INET, SOCK_DGRAM));
  return socket ? datapath::network_cookie(socket.get()).value_or(datapath::kUnknownNetwork)
                : datapath::kUnknownNetwork;
}

}  // namespace

KernelConnections::KernelConnections(const datapath::Datapath& datapath, fs::path cgroup_root)
    : datapath_(datapath), cgroup_root_(std::move(cgroup_root)) {}

KernelConnections::~KernelConnections() {
  pool_.join();
}

asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>> KernelConnections::list() {
  using Result = std::expected<std::vector<Found>, std::error_code>;
  auto collect = [cgroups = attached_cgroups(datapath_)]() -> Result {
    std::vector<Found> found;
    for (const auto& [inode, network] : networks_of(cgroups)) {
      auto& [found_inode, cookie, sockets] = found.emplace_back();
      found_inode = inode;
      cookie = cookie_of(network);
      auto diag = sockets::SocketDiag::open(network);
      if (!diag) return std::unexpected(diag.error());
      const auto listed = diag->for_each([&](const sockets::Connection& socket) {
        if (!socket.accepted) sockets.push_back(socket);
      });
      if (!listed) return std::unexpected(listed.error());
    }
    return found;
  };
  const Result found = co_await run_in_background(pool_, std::move(collect));
  if (!found) co_return std::unexpected("sock_diag: " + found.error().message());
  co_return of_workloads(*found);
}

std::vector<OpenConnection> KernelConnections::of_workloads(
    const std::vector<Found>& networks) const {
  WorkloadsByCgroup workloads(datapath_.attachments(), cgroup_root_);
  std::vector<OpenConnection> result;
  for (const auto& [inode, cookie, sockets] : networks) {
    const datapath::ProxyPorts proxy = datapath_.proxy_ports(cookie);
    for (const sockets::Connection& socket : sockets) {
      if (socket.cgroup == 0 || is_proxy(proxy, socket)) continue;
      if (const WorkloadId workload = workloads.find(socket.cgroup); workload != 0)
        result.push_back({workload, inode, socket});
    }
  }
  return result;
}

Connections::PortSets KernelConnections::port_sets(const OpenConnection& connection) {
  const sockets::Connection& socket = connection.socket;
  const auto sets = datapath_.port_sets(connection.workload, socket.remote.address, socket.protocol,
                                        socket.remote.port);
  return {sets.of_address, sets.of_port};
}

asio::awaitable<Connections::Results> KernelConnections::end(
    std::vector<OpenConnection> connections) {
  auto work = [cgroups = attached_cgroups(datapath_), connections = std::move(connections)] {
    const auto networks = networks_of(cgroups);
    std::map<std::uint64_t, std::expected<sockets::SocketDiag, std::error_code>> diags;
    Results results;
    results.reserve(connections.size());
    for (const OpenConnection& connection : connections) {
      const auto network = networks.find(connection.network);
      if (network == networks.end()) {  // and its sockets with it
        results.push_back(
            std::unexpected(std::make_error_code(std::errc::no_such_file_or_directory)));
        continue;
      }
      auto diag = diags.find(connection.network);
      if (diag == diags.end())
        diag = diags.emplace(connection.network, sockets::SocketDiag::open(network->second)).first;
      results.push_back(diag->second ? diag->second->destroy(connection.socket)
                                     : std::unexpected(diag->second.error()));
    }
    return results;
  };
  co_return co_await run_in_background(pool_, std::move(work));
}

}  // namespace mapgate::engine
