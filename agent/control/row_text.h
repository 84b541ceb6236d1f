// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <mapgate/maps/row.h>
#include <mapgate/reconciler/types.h>
#include <nlohmann/json.hpp>

#include "agent/policy/allocations.h"
#include "agent/policy/compile.h"

namespace mapgate::control {

// Why a row fails, in one line.
[[nodiscard]] std::string error_text(const reconciler::RowError& error);

// Rows in the words of the spec: workloads and port sets by name instead of number.
class RowText {
 public:
  // Copies what it needs.
  RowText(const policy::Allocations& allocations, const policy::MapIndices& indices);

  // The number itself if it has no name.
  [[nodiscard]] std::string workload(std::uint32_t id) const;
  [[nodiscard]] std::vector<std::string> port_sets(std::uint32_t workload,
                                                   std::uint64_t bits) const;

  [[nodiscard]] std::string map_name(maps::MapIndex map) const;
  // Whether one of mapgate's own maps is called so.
  [[nodiscard]] static bool is_map_name(std::string_view name);
  [[nodiscard]] std::uint32_t workload_of(const maps::RowKey& key) const;
  // The key in one line, without the workload: "192.0.2.1", "10.0.0.0/8", "tcp:443".
  [[nodiscard]] std::string key(const maps::RowKey& key) const;
  // map, workload, and the fields of the key and the value that docs/cli.md names.
  [[nodiscard]] nlohmann::ordered_json describe(const maps::RowKey& key,
                                                const std::optional<maps::RowValue>& value) const;

 private:
  struct Workload {
    std::string name;
    std::map<std::uint8_t, std::string> port_sets;
  };

  policy::MapIndices indices_;
  std::map<std::uint32_t, Workload> workloads_;
};

}  // namespace mapgate::control
