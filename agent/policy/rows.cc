// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/rows.h"

#include <algorithm>
#include <cstring>

namespace mapgate::policy {
namespace {

constexpr std::uint32_t kWorkloadBits = 32;

maps::RowKey prefix_key(maps::MapIndex map, std::uint32_t workload, const BitPrefix& prefix) {
  mg_prefix_key key{
      .prefixlen = kWorkloadBits + prefix.length, .workload = workload, .address = {}};
  std::ranges::copy(prefix.bits, key.address);
  return maps::RowKey::of(map, key);
}

maps::RowKey port_key(maps::MapIndex map, std::uint32_t workload, const BitPrefix& prefix) {
  mg_port_key key{
      .prefixlen = kWorkloadBits + prefix.length, .workload = workload, .protocol = 0, .port = 0};
  // Both are in network order, as the bits are.
  std::memcpy(&key.protocol, prefix.bits.data(), sizeof key.protocol);
  std::memcpy(&key.port, prefix.bits.data() + sizeof key.protocol, sizeof key.port);
  return maps::RowKey::of(map, key);
}

std::expected<void, std::string> check_row_count(std::string_view map, std::size_t rows,
                                                 std::uint32_t size) {
  if (rows <= size) return {};
  return std::unexpected("the policy needs " + std::to_string(rows) + " rows of the map of " +
                         std::string(map) + ", which holds " + std::to_string(size) +
                         " (node.maps." + std::string(map) + ")");
}

}  // namespace

LpmRows prefix_rows(const MapIndices& indices, std::uint32_t workload) {
  return {.key = prefix_key, .map = indices.prefixes, .workload = workload};
}

LpmRows port_rows(const MapIndices& indices, std::uint32_t workload) {
  return {.key = port_key, .map = indices.ports, .workload = workload};
}

void append_rows(const LpmRows& rows, const LpmTable& table, std::vector<Row>& to) {
  for (const LpmNode& node : table)
    to.push_back({rows(node.prefix), port_sets_value(node.port_sets)});
}

maps::RowKey workload_key(const MapIndices& indices, std::uint32_t workload) {
  return maps::RowKey::of(indices.workloads, workload);
}

mg_workload verdict_settings(const CompiledWorkload& workload) {
  return {.mode = workload.mode == Mode::kAudit ? __u32{MG_MODE_AUDIT} : __u32{MG_MODE_ENFORCE},
          .flags = workload.allow_loopback ? __u32{MG_WORKLOAD_ALLOW_LOOPBACK} : 0};
}

maps::RowValue workload_value(const mg_workload& settings) {
  return maps::row_value(settings);
}

std::expected<void, std::string> check_row_counts(std::size_t prefixes, std::size_t ports,
                                                  const MapSizes& sizes) {
  if (const auto fits = check_row_count("prefixes", prefixes, sizes.prefixes); !fits) return fits;
  return check_row_count("ports", ports, sizes.ports);
}

maps::RowKey address_key(const MapIndices& indices, std::uint32_t workload,
                         const IpAddress& address) {
  mg_address_key key{.workload = workload, .address = {}};
  std::ranges::copy(address.bytes(), key.address);
  return maps::RowKey::of(indices.addresses, key);
}

maps::RowValue port_sets_value(std::uint64_t port_sets) {
  return maps::row_value(mg_port_sets{.port_sets = port_sets});
}

}  // namespace mapgate::policy
