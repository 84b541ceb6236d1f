// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <utility>

#include "agent/datapath/datapath.h"
#include "agent/dns/flow_source.h"
#include "agent/engine/enforcement.h"

namespace mapgate::engine {

// The datapath, as WorkloadBindings sees it.
class DatapathEnforcement final : public Enforcement {
 public:
  // `datapath` outlives it.
  explicit DatapathEnforcement(datapath::Datapath& datapath) : datapath_(datapath) {}

  [[nodiscard]] std::expected<workload::CgroupId, std::string> attach(const std::string& path,
                                                                      WorkloadId workload) override;
  [[nodiscard]] std::expected<void, std::string> detach(workload::CgroupId cgroup) override;
  void drop_dead() override { datapath_.drop_dead_attachments(); }
  [[nodiscard]] std::vector<AttachedCgroup> attached() const override;

 private:
  datapath::Datapath& datapath_;
};

// The datapath, as the DNS proxy sees it.
class DatapathFlows final : public dns::FlowSource {
 public:
  // `datapath` outlives it.
  explicit DatapathFlows(datapath::Datapath& datapath) : datapath_(datapath) {}

  [[nodiscard]] std::optional<dns::Flow> find(const dns::FlowKey& key) override;
  [[nodiscard]] std::expected<void, std::error_code> mark_own_socket(int socket) override;

 private:
  datapath::Datapath& datapath_;
};

}  // namespace mapgate::engine
