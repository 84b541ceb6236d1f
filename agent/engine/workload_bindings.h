// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <spdlog/logger.h>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/engine/enforcement.h"
#include "agent/workload/cgroup_watcher.h"

namespace mapgate::engine {

// Keeps the cgroups of workloads attached: now, when they appear later, and when they are made
// anew. An attach that fails is tried again every second. For the executor's thread.
class WorkloadBindings {
 public:
  struct Binding {
    WorkloadId workload = 0;
    std::optional<workload::CgroupId> cgroup;  // attached
    bool present = false;                      // the cgroup exists
    std::string error;                         // why it is not attached though it exists
  };

  // `enforcement` and `log` outlive it. The error is one line.
  [[nodiscard]] static std::expected<std::unique_ptr<WorkloadBindings>, std::string> create(
      const boost::asio::any_io_executor& executor, const std::filesystem::path& cgroup_root,
      Enforcement& enforcement, spdlog::logger& log);

  // From now on the cgroup at `path` belongs to `workload`, whose rows the kernel has.
  void bind(const std::string& path, WorkloadId workload);
  // The cgroup is no workload any more: nothing is denied to it.
  void unbind(const std::string& path);
  // Detaches whatever an earlier process attached and is not the cgroup at one of these paths.
  void detach_others(const std::set<std::string>& paths);

  // None: never bound.
  [[nodiscard]] const Binding* find(const std::string& path) const;
  // Why cgroups are not followed as they should; empty if they are.
  [[nodiscard]] std::string degraded() const;

 private:
  WorkloadBindings(const boost::asio::any_io_executor& executor, std::filesystem::path cgroup_root,
                   Enforcement& enforcement, spdlog::logger& log)
      : cgroup_root_(std::move(cgroup_root)),
        enforcement_(enforcement),
        log_(log),
        retry_timer_(executor) {}
  void cgroup_changed(const std::string& path, std::optional<workload::CgroupId> id);
  void attach(const std::string& path, Binding& binding);
  void retry_later();
  void retry();

  const std::filesystem::path cgroup_root_;
  Enforcement& enforcement_;
  spdlog::logger& log_;
  boost::asio::steady_timer retry_timer_;
  bool retrying_ = false;
  std::unique_ptr<workload::CgroupWatcher> watcher_;
  std::map<std::string, Binding> bindings_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
