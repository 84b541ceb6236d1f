// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/program_set.h"

#include <bpf/bpf.h>

#include <cerrno>
#include <set>

#include "agent/datapath/kernel_object.h"

namespace mapgate::datapath {

Result<ProgramSet> ProgramSet::open(const Options& options) {
  LibbpfLog log;
  ProgramSet set;
  set.skeleton_.reset(mapgate_bpf::open(nullptr));
  if (!set.skeleton_)
    return std::unexpected(Error{"open the BPF programs", errno, log.first_line()});
  set.skeleton_->rodata->test_workload = options.test_workload;
  const auto& maps = set.skeleton_->maps;
  bpf_map__set_max_entries(maps.mg_addresses, options.sizes.addresses);
  bpf_map__set_max_entries(maps.mg_prefixes, options.sizes.prefixes);
  bpf_map__set_max_entries(maps.mg_ports, options.sizes.ports);
  bpf_map__set_max_entries(maps.mg_dns_flows, options.max_dns_flows);
  bpf_map__set_max_entries(maps.mg_udp_peers, options.max_udp_peers);
  return set;
}

std::vector<bpf_map*> ProgramSet::maps() const {
  std::vector<bpf_map*> result;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object()) if (!bpf_map__is_internal(map)) result.push_back(map);
  return result;
}

Result<void> ProgramSet::reuse(bpf_map* map, int fd) {
  if (const int error = bpf_map__reuse_fd(map, fd); error != 0)
    return std::unexpected(system_error(std::string("share map ") + bpf_map__name(map), -error));
  return {};
}

Result<void> ProgramSet::load(bool with_guard) {
  if (auto loaded = load_object(object()); !loaded) return loaded;
  if (auto same = check_map_identity(object()); !same) return same;
  guard_missing_ = "judge foreign sockets: switched off";
  if (!with_guard) return {};
  guard_missing_.clear();
  if (auto loaded = load_guard(); !loaded) {
    guard_missing_ = loaded.error().message();
    guard_.reset();
  }
  return {};
}

Result<void> ProgramSet::load_guard() {
  LibbpfLog log;
  guard_.reset(guard_bpf::open(nullptr));
  if (!guard_) return std::unexpected(Error{"open the guard", errno, log.first_line()});
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, guard_->obj) {
    if (bpf_map__is_internal(map)) continue;
    if (auto shared = reuse(map, map_fd(bpf_map__name(map))); !shared) return shared;
  }
  return load_object(guard_->obj);
}

int ProgramSet::map_fd(std::string_view name) const {
  const bpf_map* map = bpf_object__find_map_by_name(object(), std::string(name).c_str());
  return map == nullptr ? -1 : bpf_map__fd(map);
}

}  // namespace mapgate::datapath
