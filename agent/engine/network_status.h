// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "agent/datapath/proxy_ports.h"
#include "agent/engine/enforcement.h"

namespace mapgate::engine {

// A network namespace with processes of workloads in it, other than the daemon's.
struct WorkloadNetwork {
  std::uint64_t cookie = 0;  // the kernel's name for it
  std::uint64_t inode = 0;   // of /proc/PID/ns/net
  datapath::ProxyPorts ports;
  std::set<WorkloadId> workloads;
  std::string error;  // why its DNS is denied instead; empty: it is served
};

struct NetworkStatus {
  std::vector<WorkloadNetwork> networks;  // by cookie
  std::uint64_t opened = 0;
  std::uint64_t closed = 0;   // no process of a workload was left
  std::uint64_t refused = 0;  // more than kMaxNetworks
  std::uint64_t failed = 0;   // a namespace in which no socket could be had
  std::uint64_t queries =
      0;  // that came before the sockets were there, and were taken all the same
  std::uint64_t not_found = 0;  // DNS from a namespace that could not be found by who used it
};

}  // namespace mapgate::engine
