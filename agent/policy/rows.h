// SPDX-License-Identifier: Apache-2.0
// How a policy's parts become bytes of rows (bpf/abi.h). Internal to agent/policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "agent/policy/compile.h"
#include "bpf/abi.h"

namespace mapgate::policy {

// Makes the key of one node of a workload's LPM table.
struct LpmRows {
  maps::RowKey (*key)(maps::MapIndex map, std::uint32_t workload, const BitPrefix& prefix);
  maps::MapIndex map = 0;
  std::uint32_t workload = 0;

  [[nodiscard]] maps::RowKey operator()(const BitPrefix& prefix) const {
    return key(map, workload, prefix);
  }
};
[[nodiscard]] LpmRows prefix_rows(const MapIndices& indices, std::uint32_t workload);
[[nodiscard]] LpmRows port_rows(const MapIndices& indices, std::uint32_t workload);
void append_rows(const LpmRows& rows, const LpmTable& table, std::vector<Row>& to);

[[nodiscard]] maps::RowKey workload_key(const MapIndices& indices, std::uint32_t workload);
// The part of a workload that its row in mg_workloads holds.
[[nodiscard]] mg_workload verdict_settings(const CompiledWorkload& workload);
[[nodiscard]] maps::RowValue workload_value(const mg_workload& settings);

[[nodiscard]] std::expected<void, std::string> check_row_counts(std::size_t prefixes,
                                                                std::size_t ports,
                                                                const MapSizes& sizes);

}  // namespace mapgate::policy
