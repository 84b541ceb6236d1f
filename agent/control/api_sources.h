// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <mapgate/maps/map_operations.h>

#include "agent/dns/proxy.h"
#include "agent/engine/datapath_health.h"
#include "agent/engine/declared_maps.h"
#include "agent/engine/network_status.h"
#include "agent/engine/policy_engine.h"
#include "agent/engine/spec_controller.h"
#include "bpf/abi.h"

namespace mapgate::control {

// What the API shows and works on. All of it outlives the API.
struct ApiSources {
  engine::PolicyEngine& engine;
  engine::SpecController& specs;
  engine::DeclaredMaps& declared;
  maps::MapCalls& map_calls;
  std::function<std::vector<maps::MapStatus>()> maps;  // in the order of their MapIndex
  std::function<dns::ProxyCounters()> dns;
  std::function<std::optional<mg_counters>(engine::WorkloadId)> counters;
  std::function<engine::DatapathHealth()> datapath;
  std::function<engine::NetworkStatus()> networks;
  std::string foreign_sockets_missing;  // why sockets handed in from elsewhere are not judged;
                                        // empty: they are
  std::string version;
};

}  // namespace mapgate::control
