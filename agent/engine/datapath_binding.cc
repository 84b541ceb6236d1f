// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/datapath_binding.h"

#include <netinet/in.h>

#include <chrono>

namespace mapgate::engine {
namespace {

// A UDP flow that has not been sent on for so long is somebody else's by now, maybe.
constexpr auto kMaxUdpFlowAge = std::chrono::seconds(5);

}  // namespace

std::expected<workload::CgroupId, std::string> DatapathEnforcement::attach(const std::string& path,
                                                                           WorkloadId workload) {
  // The datapath takes absolute paths for those of the file system.
  auto attached = datapath_.attach(std::filesystem::path(path).relative_path(), workload);
  if (!attached) return std::unexpected(attached.error().message());
  return *attached;
}

std::expected<void, std::string> DatapathEnforcement::detach(workload::CgroupId cgroup) {
  if (auto detached = datapath_.detach(cgroup); !detached)
    return std::unexpected(detached.error().message());
  return {};
}

std::vector<AttachedCgroup> DatapathEnforcement::attached() const {
  std::vector<AttachedCgroup> result;
  for (const datapath::Attachment& attachment : datapath_.attachments()) {
    result.push_back({attachment.cgroup, attachment.path.string()});
  }
  return result;
}

std::optional<dns::Flow> DatapathFlows::find(const dns::FlowKey& key) {
  const bool udp = key.transport == dns::Transport::kUdp;
  const auto flow = datapath_.lookup_flow(key.network, udp ? IPPROTO_UDP : IPPROTO_TCP, key.slot,
                                          key.client.address.bytes(), key.client.port);
  if (!flow) return std::nullopt;
  if (udp && std::chrono::steady_clock::now() - flow->last_sent > kMaxUdpFlowAge)
    return std::nullopt;
  return dns::Flow{flow->workload, {policy::IpAddress(flow->resolver), flow->port}};
}

std::expected<void, std::error_code> DatapathFlows::mark_own_socket(int socket) {
  if (auto marked = datapath_.mark_own_socket(socket); !marked) {
    return std::unexpected(std::error_code(marked.error().error_number, std::system_category()));
  }
  return {};
}

}  // namespace mapgate::engine
