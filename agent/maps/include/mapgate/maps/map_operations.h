// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_error.h>
#include <mapgate/maps/row.h>
#include <mapgate/reconciler/operations.h>

namespace mapgate::maps {

class BatchSize;
class TargetMap;

// One map's counters since the start.
struct MapStatus {
  MapInfo info;
  // What the last complete scan found, corrected by what was written and removed since (writes of
  // keys that Operation::held does not know of count as new): what others change in between is
  // missing. An array always holds all of its elements.
  std::uint64_t entries = 0;
  std::uint64_t written = 0;              // elements written
  std::uint64_t removed = 0;              // elements that were there and are not any more
  std::array<std::uint64_t, 4> errors{};  // failed operations, by ErrorClass
  std::uint64_t reopened = 0;             // times that it was lost and opened again
  // Which batch calls the running kernel has for it.
  bool update_batch = false;
  bool delete_batch = false;
  bool lookup_batch = false;

  // How many more elements it takes, by `entries`. An array takes any row that it has a place for.
  [[nodiscard]] std::uint64_t room() const;
  // The part of it that is taken, 0 to 1.
  [[nodiscard]] double fill() const;
  // There is still time to make it larger. Never of an array, which has all of its elements always.
  [[nodiscard]] bool is_nearly_full() const { return can_fill_up() && fill() >= kNearlyFull; }
  // Below this a map that was nearly full has room again: not at kNearlyFull itself, where one
  // element more or less would change it each time.
  [[nodiscard]] bool has_room_again() const { return !can_fill_up() || fill() < kRoomAgain; }
  static constexpr double kNearlyFull = 0.8;
  static constexpr double kRoomAgain = 0.75;

 private:
  [[nodiscard]] bool can_fill_up() const;
};

// Rows as elements of BPF maps. RowKey::map() is the index of the map in the order given to
// create(), and also the TargetId of its results.
//
// - Hash, LPM trie, array, per-CPU hash and array, hash and array of maps. LRU types evict what
//   does not fit instead of saying so, and cannot hold desired state.
// - A value of a per-CPU map is what every CPU holds. Where CPUs differ, a scan shows the values of
//   all of them one after the other, which no row has.
// - A value of a map of maps is a whole inner map, see inner_map.h. The kernel waits for programs
//   that may use the one before, about 8 ms for each call whatever its size.
// - Keys and values must be exactly as large as the map's, LPM keys in canonical form: else
// kPermanent.
// - An array's elements cannot be deleted: a delete writes zeros and frees nothing, and zeros are
//   "absence". An index past its end is kPermanent, and absent.
// - Elements go to the kernel in batches where it has such a call, each about as long as
//   Options::call_limit at most, by the measured cost of the calls before. So is a whole apply() if
//   its batch keeps to batch_limit().
// - A map that was opened by pin and lost (EBADF) is opened again by that pin at the next call.
//
// Not thread-safe: for the reconciler's driver. `calls` must outlive it.
class MapOperations final : public reconciler::Operations<RowKey, RowValue> {
 public:
  struct Options {
    std::function<reconciler::TimePoint()> now;  // required
    reconciler::Duration call_limit = std::chrono::milliseconds(1);
    // How inner maps are made, by the index of their map of maps: each needs one.
    std::map<MapIndex, MapInfo> inner_maps = {};
  };

  // Why such a map cannot be kept, its type or its sizes; empty if it can. `inner` is how the inner
  // maps of a map of maps are made.
  [[nodiscard]] static std::string unsuitable(const MapInfo& info, const MapInfo* inner = nullptr);
  // Refuses maps that it cannot keep, with the reason. Asks the kernel what it can do for each
  // map.
  [[nodiscard]] static std::expected<MapOperations, MapError> create(std::vector<Map> maps,
                                                                     MapCalls& calls,
                                                                     Options options);
  MapOperations(MapOperations&&) noexcept;
  MapOperations& operator=(MapOperations&&) noexcept;
  ~MapOperations() override;

  void apply(std::span<const reconciler::Operation<RowKey, RowValue>> batch,
             std::span<reconciler::OperationResult> results) override;
  [[nodiscard]] std::size_t batch_limit() const override;

  // Reads map after map. Each call does about one system call's worth, so it may append less than
  // `max`.
  [[nodiscard]] std::expected<void, reconciler::OperationError> scan_begin() override;
  [[nodiscard]] std::expected<bool, reconciler::OperationError> scan_next(
      std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries) override;

  [[nodiscard]] bool is_absence(const RowKey& key, const RowValue& value) const override;
  // From now on `map` takes the place of the one at `index`: of the same type and layout, and with
  // the same contents, as a copy of another size has. A scan of it starts again.
  void replace(MapIndex index, Map map);

  // One per map, in order.
  [[nodiscard]] std::vector<MapStatus> status() const;

 private:
  MapOperations(std::vector<std::unique_ptr<TargetMap>> targets, Options options);

  Options options_;
  std::unique_ptr<BatchSize> batch_size_;  // of apply()
  std::vector<std::unique_ptr<TargetMap>> targets_;
  std::size_t scanned_ = 0;  // maps that the scan has finished
};

}  // namespace mapgate::maps
