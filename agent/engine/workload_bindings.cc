// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/workload_bindings.h"

#include <chrono>
#include <utility>

namespace mapgate::engine {
namespace {

constexpr auto kRetryInterval = std::chrono::seconds(1);

}  // namespace

std::expected<std::unique_ptr<WorkloadBindings>, std::string> WorkloadBindings::create(
    const boost::asio::any_io_executor& executor, const std::filesystem::path& cgroup_root,
    Enforcement& enforcement, spdlog::logger& log) {
  std::unique_ptr<WorkloadBindings> bindings(
      new WorkloadBindings(executor, cgroup_root, enforcement, log));
  auto watcher = workload::CgroupWatcher::create(
      executor, cgroup_root,
      [self = bindings.get()](const std::string& path, std::optional<workload::CgroupId> id) {
        self->cgroup_changed(path, id);
      });
  if (!watcher) {
    return std::unexpected("cannot watch cgroups below " + cgroup_root.string() + ": " +
                           watcher.error().message());
  }
  bindings->watcher_ = std::move(*watcher);
  return bindings;
}

void WorkloadBindings::bind(const std::string& path, WorkloadId workload) {
  Binding& binding = bindings_[path];
  if (binding.workload == workload) return;
  binding.workload = workload;
  const auto id = watcher_->watch(path);
  binding.present = id && *id;
  if (!id) binding.error = id.error().message();
  if (binding.present) attach(path, binding);
}

void WorkloadBindings::unbind(const std::string& path) {
  const auto entry = bindings_.find(path);
  if (entry == bindings_.end()) return;
  watcher_->unwatch(path);
  if (entry->second.cgroup) {
    if (const auto detached = enforcement_.detach(*entry->second.cgroup); !detached) {
      log_.error("cannot detach {}: {}", path, detached.error());
    } else {
      log_.info("detached {}", path);
    }
  }
  bindings_.erase(entry);
}

void WorkloadBindings::detach_others(const std::set<std::string>& paths) {
  // By id: a path can be spelled in several ways, and a wrong guess would leave a workload without
  // enforcement.
  std::set<workload::CgroupId> kept;
  for (const std::string& path : paths) {
    if (const auto id = workload::cgroup_id(cgroup_root_.native() + path)) kept.insert(*id);
  }
  enforcement_.drop_dead();
  for (const AttachedCgroup& attached : enforcement_.attached()) {
    if (kept.contains(attached.cgroup)) continue;
    if (const auto detached = enforcement_.detach(attached.cgroup); !detached) {
      log_.error("cannot detach cgroup {} ({}): {}", attached.cgroup, attached.path,
                 detached.error());
    } else {
      log_.info("detached cgroup {} ({}), which the spec does not have", attached.cgroup,
                attached.path);
    }
  }
}

const WorkloadBindings::Binding* WorkloadBindings::find(const std::string& path) const {
  const auto entry = bindings_.find(path);
  return entry == bindings_.end() ? nullptr : &entry->second;
}

std::string WorkloadBindings::degraded() const {
  return watcher_->degraded()
             ? "cannot watch cgroups, they are polled: " + watcher_->degraded().message()
             : "";
}

void WorkloadBindings::cgroup_changed(const std::string& path,
                                      std::optional<workload::CgroupId> id) {
  const auto entry = bindings_.find(path);
  if (entry == bindings_.end()) return;
  Binding& binding = entry->second;
  binding.present = id.has_value();
  if (id) {
    attach(path, binding);
  } else {
    log_.info("cgroup {} is gone", path);
    binding.cgroup.reset();
    binding.error.clear();
    enforcement_.drop_dead();
  }
}

void WorkloadBindings::attach(const std::string& path, Binding& binding) {
  const auto attached = enforcement_.attach(path, binding.workload);
  if (attached) {
    binding.cgroup = *attached;
    binding.error.clear();
    log_.info("attached {} (cgroup {}) as workload {}", path, *attached, binding.workload);
    return;
  }
  if (binding.error != attached.error()) log_.error("cannot attach {}: {}", path, attached.error());
  binding.cgroup.reset();
  binding.error = attached.error();
  retry_later();
}

void WorkloadBindings::retry_later() {
  if (std::exchange(retrying_, true)) return;
  retry_timer_.expires_after(kRetryInterval);
  retry_timer_.async_wait(
      [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
        if (error || alive.expired()) return;
        retrying_ = false;
        retry();
      });
}

void WorkloadBindings::retry() {
  for (auto& [path, binding] : bindings_) {
    if (binding.present && !binding.cgroup) attach(path, binding);
  }
}

}  // namespace mapgate::engine
