// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/revocation.h"

#include <netinet/in.h>

#include <algorithm>
#include <utility>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
using policy::CompiledPolicy;
using policy::CompiledWorkload;

// Kept for status; and log lines for one change of policy.
constexpr std::size_t kMaxRecent = 32;

bool destroys(const CompiledWorkload& workload) {
  return workload.on_revoke == policy::RevokeAction::kDestroy &&
         workload.mode == policy::Mode::kEnforce;
}

bool any_destroys(const CompiledPolicy& policy) {
  return std::ranges::any_of(policy.workloads(),
                             [](const auto& entry) { return destroys(entry.second); });
}

const CompiledWorkload* find(const CompiledPolicy& policy, WorkloadId id) {
  const auto found = policy.workloads().find(id);
  return found == policy.workloads().end() ? nullptr : &found->second;
}

bool is_allowed(const CompiledWorkload& workload, const OpenConnection& connection,
                const Connections::PortSets& sets) {
  if (workload.allow_loopback && policy::IpAddress(connection.socket.remote.address).is_loopback())
    return true;
  return (sets.of_address & sets.of_port) != 0;
}

std::string describe(const std::string& workload, const sockets::Connection& socket) {
  const auto endpoint = [](const sockets::Endpoint& at) {
    return policy::IpAddress(at.address).with_port(at.port);
  };
  return "workload " + workload + ": " + (socket.protocol == IPPROTO_UDP ? "udp " : "tcp ") +
         endpoint(socket.local) + " to " + endpoint(socket.remote);
}

}  // namespace

asio::awaitable<void> Revocation::before(const CompiledPolicy& from, const CompiledPolicy& to) {
  forbidden_before_.clear();
  if (!any_destroys(to)) co_return;
  const auto connections = co_await connections_.list();
  if (!connections) co_return;  // after() says so
  for (const OpenConnection& connection : *connections) {
    const CompiledWorkload* workload = find(from, connection.workload);
    // Where nothing was enforced, nothing was forbidden.
    if (workload == nullptr || workload->mode != policy::Mode::kEnforce) continue;
    if (!is_allowed(*workload, connection, connections_.port_sets(connection)))
      forbidden_before_.insert(name_of(connection));
  }
}

asio::awaitable<void> Revocation::after(const CompiledPolicy& to, const ExpiredPortSets& expired) {
  if (!any_destroys(to)) co_return;
  auto connections = co_await connections_.list();
  if (!connections) {
    ++counters_.unlisted;
    log_.error("connections that the policy forbids now are not ended: {}", connections.error());
    co_return;
  }
  const std::vector<OpenConnection> chosen = choose(to, std::move(*connections), expired);
  forbidden_before_.clear();
  if (chosen.empty()) co_return;
  const Connections::Results results = co_await connections_.end(chosen);
  for (std::size_t i = 0; i < chosen.size(); ++i) report(to, chosen[i], results[i], i < kMaxRecent);
  if (chosen.size() > kMaxRecent)
    log_.warn("the change of policy forbids {} connections in all", chosen.size());
}

std::vector<OpenConnection> Revocation::choose(const CompiledPolicy& to,
                                               std::vector<OpenConnection> connections,
                                               const ExpiredPortSets& expired) {
  std::erase_if(connections, [&](const OpenConnection& connection) {
    const CompiledWorkload* workload = find(to, connection.workload);
    if (workload == nullptr || !destroys(*workload)) return true;
    const Connections::PortSets sets = connections_.port_sets(connection);
    if (is_allowed(*workload, connection, sets)) return true;
    if (!forbidden_before_.contains(name_of(connection))) return false;
    const auto today =
        expired(connection.workload, policy::IpAddress(connection.socket.remote.address));
    return !today || (*today & sets.of_port) != 0;
  });
  return connections;
}

void Revocation::report(const CompiledPolicy& policy, const OpenConnection& connection,
                        const std::expected<void, std::error_code>& result, bool logged) {
  // One that has ended by itself needs no word.
  if (!result && result.error() == std::errc::no_such_file_or_directory) return;
  std::string line = describe(find(policy, connection.workload)->name, connection.socket);
  line += result ? ": ended, the policy forbids it"
                 : ": forbidden, but cannot be ended: " + result.error().message();
  ++(result ? counters_.ended : counters_.failed);
  if (recent_.size() >= kMaxRecent) recent_.pop_front();
  recent_.push_back(line);
  if (logged) log_.warn("{}", line);
}

}  // namespace mapgate::engine
