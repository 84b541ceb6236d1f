// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/reload.h"

#include <cstddef>
#include <utility>

#include "agent/policy/rows.h"

namespace mapgate::policy {
namespace {

void append_keys(const LpmRows& rows, const std::vector<BitPrefix>& prefixes,
                 std::vector<maps::RowKey>& to) {
  for (const BitPrefix& prefix : prefixes) to.push_back(rows(prefix));
}

void append_keys(const LpmRows& rows, const LpmTable& table, std::vector<maps::RowKey>& to) {
  for (const LpmNode& node : table) to.push_back(rows(node.prefix));
}

bool equal(const mg_workload& a, const mg_workload& b) {
  return a.mode == b.mode && a.flags == b.flags;
}

// Whatever one of the two lets pass.
mg_workload widest(const mg_workload& a, const mg_workload& b) {
  const bool audit = a.mode == MG_MODE_AUDIT || b.mode == MG_MODE_AUDIT;
  return {.mode = audit ? __u32{MG_MODE_AUDIT} : __u32{MG_MODE_ENFORCE},
          .flags = a.flags | b.flags};
}

class ReloadPlanner {
 public:
  // Unconfigured workloads deny, so their rows may come in any order before they are configured.
  void add(const MapIndices& indices, const CompiledWorkload& workload) {
    append_rows(prefix_rows(indices, workload.id), workload.prefixes, plan_.split.write);
    append_rows(port_rows(indices, workload.id), workload.ports, plan_.split.write);
    plan_.widen.write.push_back(
        {workload_key(indices, workload.id), workload_value(verdict_settings(workload))});
    peak_prefixes_ += workload.prefixes.size();
    peak_ports_ += workload.ports.size();
  }

  // And in any order go once they are unconfigured.
  void remove(const MapIndices& indices, const CompiledWorkload& workload) {
    plan_.narrow.erase.push_back(workload_key(indices, workload.id));
    append_keys(prefix_rows(indices, workload.id), workload.prefixes, plan_.merge.erase);
    append_keys(port_rows(indices, workload.id), workload.ports, plan_.merge.erase);
    peak_prefixes_ += workload.prefixes.size();
    peak_ports_ += workload.ports.size();
  }

  void change(const MapIndices& indices, const CompiledWorkload& from, const CompiledWorkload& to) {
    change_settings(workload_key(indices, to.id), verdict_settings(from), verdict_settings(to));
    peak_prefixes_ += change_table(prefix_rows(indices, to.id), from.prefixes, to.prefixes);
    peak_ports_ += change_table(port_rows(indices, to.id), from.ports, to.ports);
  }

  std::expected<ReloadPlan, std::string> finish(const MapSizes& sizes) && {
    if (const auto fits = check_row_counts(peak_prefixes_, peak_ports_, sizes); !fits) {
      return std::unexpected("old and new rows together: " + fits.error());
    }
    return std::move(plan_);
  }

 private:
  void change_settings(const maps::RowKey& key, const mg_workload& before,
                       const mg_workload& after) {
    const mg_workload both = widest(before, after);
    if (!equal(both, before)) plan_.widen.write.push_back({key, workload_value(both)});
    if (!equal(after, both)) plan_.narrow.write.push_back({key, workload_value(after)});
  }

  // Returns how many rows the table has at most on the way.
  std::size_t change_table(const LpmRows& rows, const LpmTable& from, const LpmTable& to) {
    const LpmTransition transition = plan_transition(from, to);
    append_rows(rows, transition.split, plan_.split.write);
    append_rows(rows, transition.widen, plan_.widen.write);
    append_rows(rows, transition.narrow, plan_.narrow.write);
    append_keys(rows, transition.narrow_erase, plan_.narrow.erase);
    append_keys(rows, transition.merge, plan_.merge.erase);
    return transition.peak;
  }

  ReloadPlan plan_;
  std::size_t peak_prefixes_ = 0;
  std::size_t peak_ports_ = 0;
};

}  // namespace

std::expected<ReloadPlan, std::string> plan_reload(const CompiledPolicy& from,
                                                   const CompiledPolicy& to,
                                                   const MapSizes& sizes) {
  ReloadPlanner planner;
  for (const auto& [id, workload] : to.workloads()) {
    const auto before = from.workloads().find(id);
    if (before == from.workloads().end()) {
      planner.add(to.map_indices(), workload);
    } else {
      planner.change(to.map_indices(), before->second, workload);
    }
  }
  for (const auto& [id, workload] : from.workloads()) {
    if (!to.workloads().contains(id)) planner.remove(from.map_indices(), workload);
  }
  return std::move(planner).finish(sizes);
}

}  // namespace mapgate::policy
