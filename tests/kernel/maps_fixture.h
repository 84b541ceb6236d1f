// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mapgate/maps/map_operations.h>
#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/table.h>

#include "tests/support/requirements.h"

namespace mapgate::maps {

using Operation = reconciler::Operation<RowKey, RowValue>;
using Result = reconciler::OperationResult;

struct TrieKey {
  std::uint32_t prefix_length;
  std::array<std::uint8_t, 4> data;
};

// Distinct /32 prefixes, or plain numbers, for `number`.
inline RowKey key_for(bpf_map_type type, std::uint32_t number, MapIndex map = 0) {
  if (type != BPF_MAP_TYPE_LPM_TRIE) return RowKey::of(map, number);
  TrieKey key{32, {}};
  std::memcpy(key.data.data(), &number, sizeof number);
  return RowKey::of(map, key);
}

inline MapInfo info_for(bpf_map_type type, std::uint32_t max_entries = 1000) {
  return {.type = type,
          .key_size = type == BPF_MAP_TYPE_LPM_TRIE ? 8U : 4U,
          .value_size = 8,
          .max_entries = max_entries,
          .flags = type == BPF_MAP_TYPE_LPM_TRIE ? std::uint32_t{BPF_F_NO_PREALLOC} : 0U,
          .name = "mg_test"};
}

inline std::vector<Result> carry_out(MapOperations& operations,
                                     const std::vector<Operation>& batch) {
  std::vector<Result> results(batch.size());
  operations.apply(batch, results);
  return results;
}

inline std::size_t failures(const std::vector<Result>& results) {
  return static_cast<std::size_t>(std::ranges::count_if(
      results, [](const Result& result) { return result.error.has_value(); }));
}

using Contents = std::vector<std::pair<RowKey, RowValue>>;

inline Contents scan(MapOperations& operations) {
  Contents entries;
  if (const auto begun = operations.scan_begin(); !begun) {
    ADD_FAILURE() << begun.error().text;
    return entries;
  }
  for (int slice = 0; slice < 100000; ++slice) {
    const auto end = operations.scan_next(1000, entries);
    if (end && !*end) continue;
    if (!end) ADD_FAILURE() << end.error().text;
    break;
  }
  std::erase_if(
      entries, [&](const auto& entry) { return operations.is_absence(entry.first, entry.second); });
  return entries;
}

class KernelMaps : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::missing_for_bpf();
    MAPGATE_REQUIRE(missing.empty(), missing);
  }

  [[nodiscard]] Map make(const MapInfo& info) {
    auto map = Map::create(info);
    if (!map) throw std::runtime_error(map.error().text());
    return std::move(*map);
  }
  [[nodiscard]] MapOperations operations_on(Map map) {
    std::vector<Map> maps;
    maps.push_back(std::move(map));
    return operations_on(std::move(maps));
  }
  [[nodiscard]] MapOperations operations_on(std::vector<Map> maps,
                                            std::map<MapIndex, MapInfo> inner_maps = {}) {
    auto made = MapOperations::create(std::move(maps), kernel_calls,
                                      {.now = [] { return std::chrono::steady_clock::now(); },
                                       .inner_maps = std::move(inner_maps)});
    if (!made) throw std::runtime_error(made.error().text());
    return std::move(*made);
  }

  KernelMapCalls kernel_calls;
};

using Table = reconciler::Table<RowKey, RowValue, RowKeyHash>;
using Reconciler = reconciler::Reconciler<RowKey, RowValue, RowKeyHash>;

// A table, its reconciler, and a clock that stands still.
struct Agent {
  explicit Agent(MapOperations made, const reconciler::Options& options = {})
      : operations(std::move(made)), reconciler(table, operations, options) {}

  // Until nothing is due, in virtual time.
  void settle() {
    for (int step = 0; step < 100000; ++step)
      if (!reconciler.step(now).more) return;
    ADD_FAILURE() << "the reconciler does not come to rest";
  }
  void put(std::uint32_t number, std::uint64_t value, bpf_map_type type) {
    auto transaction = table.begin();
    transaction.put(key_for(type, number), row_value(value));
    std::move(transaction).commit(now);
  }
  [[nodiscard]] reconciler::RowState state(const RowKey& key) const {
    return reconciler.status(key).value().state;
  }

  reconciler::TimePoint now{};
  Table table{reconciler::Epoch::from_random(1, 2)};
  MapOperations operations;
  Reconciler reconciler;
};

}  // namespace mapgate::maps
