// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <mapgate/maps/map_operations.h>

#include "agent/maps/src/batch_size.h"
#include "agent/maps/src/entry_count.h"
#include "agent/maps/src/inner_maps.h"
#include "agent/maps/src/map_scan.h"

namespace mapgate::maps {

// One map of MapOperations. Operations are queued, then run in one round.
class TargetMap {
 public:
  using Operation = reconciler::Operation<RowKey, RowValue>;
  using Result = reconciler::OperationResult;
  // The batch that queued positions refer to, and where its results go.
  struct Round {
    std::span<const Operation> batch;
    std::span<Result> results;
  };

  TargetMap(MapIndex index, Map map, MapCalls& calls, MapOperations::Options options);

  void queue(std::size_t position, Round round);
  [[nodiscard]] bool has_work() const { return !writes_.empty() || !deletes_.empty(); }
  void run(Round round);

  [[nodiscard]] std::expected<void, reconciler::OperationError> scan_begin();
  [[nodiscard]] std::expected<bool, reconciler::OperationError> scan_next(
      std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries);

  [[nodiscard]] bool is_absence(const RowValue& value) const;
  void replace(Map map);

  [[nodiscard]] MapStatus status() const;

 private:
  using Positions = std::vector<std::uint32_t>;

  [[nodiscard]] bool is_array() const { return maps::is_array(map_.info().type); }
  void probe();
  [[nodiscard]] std::optional<reconciler::OperationError> refusal(const Operation& operation) const;
  [[nodiscard]] reconciler::OperationError failure(MapAction action, int error) const;
  [[nodiscard]] std::expected<void, reconciler::OperationError> ensure_open();

  void write(std::span<const std::uint32_t> positions, Round round);
  [[nodiscard]] Positions make_inner_maps(std::span<const std::uint32_t> positions, Round round);
  void run(MapAction action, std::span<const std::uint32_t> positions, Round round);
  [[nodiscard]] std::size_t run_batch(MapAction action, std::span<const std::uint32_t> positions,
                                      Round round);
  void run_single(MapAction action, std::uint32_t position, Round round, bool may_be_done);
  [[nodiscard]] int call_batch(MapAction action, std::uint32_t& count);
  void gather(std::span<const std::uint32_t> positions, Round round);
  // The value of an operation as the kernel takes it, an element's size.
  void encode(std::uint32_t position, const Operation& operation, std::byte* to) const;
  // And back; none: the element is gone.
  [[nodiscard]] std::expected<std::optional<RowValue>, int> decode(
      std::span<const std::byte> value);
  void settle(MapAction action, std::uint32_t position, Round round, int error);
  [[nodiscard]] RowKey row_of(std::span<const std::byte> key);
  void keep_scan_in_place(Round round);
  void retry_what_did_not_fit(Round round, std::uint64_t removed_before);
  void fail_all(Round round, const reconciler::OperationError& error);
  void count_errors(const Positions& positions, Round round);

  MapIndex index_;
  Map map_;
  MapCalls& calls_;
  MapOperations::Options options_;
  std::optional<InnerMaps> inner_;
  std::size_t cpu_value_size_;  // of one CPU, if it has a value for each
  std::size_t element_size_;    // of a value, as the kernel takes it
  BatchSize write_size_;
  BatchSize delete_size_;
  MapStatus status_;  // info and entries are filled in by status()
  bool lost_ = false;

  Positions writes_;
  Positions deletes_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::byte> key_;         // row_of's
  std::vector<std::byte> value_;       // run_single's
  std::map<std::uint32_t, Map> made_;  // inner maps for writes that are under way, by position

  EntryCount entries_;
  std::uint64_t seen_ = 0;  // by the scan that is going on
  bool scanning_ = false;
  MapScan scan_;
};

}  // namespace mapgate::maps
