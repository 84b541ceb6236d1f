// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "agent/workload/cgroup_watcher.h"

namespace mapgate::engine {

using WorkloadId = std::uint32_t;

struct AttachedCgroup {
  workload::CgroupId cgroup = 0;
  std::string path;  // for people; empty: not known
};

// What binds cgroups to workloads in the kernel. Errors are one line for people.
class Enforcement {
 public:
  virtual ~Enforcement() = default;

  // `path` is absolute from the cgroup root. Attached already: only its workload changes.
  [[nodiscard]] virtual std::expected<workload::CgroupId, std::string> attach(
      const std::string& path, WorkloadId workload) = 0;
  [[nodiscard]] virtual std::expected<void, std::string> detach(workload::CgroupId cgroup) = 0;
  // Frees what cgroups that are gone have left.
  virtual void drop_dead() = 0;
  [[nodiscard]] virtual std::vector<AttachedCgroup> attached() const = 0;
};

}  // namespace mapgate::engine
