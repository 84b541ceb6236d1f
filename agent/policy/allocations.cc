// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/allocations.h"

#include <bitset>

#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

template <std::size_t kSize>
std::optional<std::size_t> first_free(const std::bitset<kSize>& taken) {
  for (std::size_t i = 0; i < kSize; ++i) {
    if (!taken[i]) return i;
  }
  return std::nullopt;
}

std::bitset<MG_MAX_WORKLOADS> taken_ids(const Allocations::Workloads& workloads) {
  std::bitset<MG_MAX_WORKLOADS> taken;
  taken.set(0);  // "no workload"
  for (const auto& [name, workload] : workloads) taken.set(workload.id);
  return taken;
}

std::bitset<MG_MAX_PORT_SETS> taken_bits(const Allocations::Workload& workload) {
  std::bitset<MG_MAX_PORT_SETS> taken;
  for (const auto& [port_set, bit] : workload.port_sets) taken.set(bit);
  return taken;
}

}  // namespace

std::optional<std::uint32_t> Allocations::workload_id(std::string_view workload) {
  if (const auto found = workloads_.find(workload); found != workloads_.end())
    return found->second.id;
  const auto id = first_free(taken_ids(workloads_));
  if (!id) return std::nullopt;
  workloads_.emplace(workload, Workload{.id = static_cast<std::uint32_t>(*id), .port_sets = {}});
  return static_cast<std::uint32_t>(*id);
}

std::optional<std::uint8_t> Allocations::port_set_bit(std::string_view workload,
                                                      std::string_view port_set) {
  Workload& owner = workloads_.find(workload)->second;
  if (const auto found = owner.port_sets.find(port_set); found != owner.port_sets.end())
    return found->second;
  const auto bit = first_free(taken_bits(owner));
  if (!bit) return std::nullopt;
  owner.port_sets.emplace(port_set, static_cast<std::uint8_t>(*bit));
  return static_cast<std::uint8_t>(*bit);
}

bool Allocations::restore_workload(std::string_view workload, std::uint32_t id) {
  if (id >= MG_MAX_WORKLOADS || taken_ids(workloads_).test(id)) return false;
  return workloads_.emplace(workload, Workload{.id = id, .port_sets = {}}).second;
}

bool Allocations::restore_port_set(std::string_view workload, std::string_view port_set,
                                   std::uint8_t bit) {
  const auto owner = workloads_.find(workload);
  if (owner == workloads_.end() || bit >= MG_MAX_PORT_SETS || taken_bits(owner->second).test(bit))
    return false;
  return owner->second.port_sets.emplace(port_set, bit).second;
}

void Allocations::release_unused(const Workloads& used) {
  std::erase_if(workloads_, [&](const auto& entry) { return !used.contains(entry.first); });
  for (auto& [name, workload] : workloads_) {
    const auto& kept = used.find(name)->second.port_sets;
    std::erase_if(workload.port_sets,
                  [&](const auto& entry) { return !kept.contains(entry.first); });
  }
}

}  // namespace mapgate::policy
