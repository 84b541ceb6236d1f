// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/reconciler/types.h>

#include "agent/maps/src/batch_size.h"

namespace mapgate::maps {

// Reads one map from its start to its end, in slices. `map`, `calls` and `now` must outlive it.
// `value_size` is what the kernel copies for an element.
class MapScan {
 public:
  using Visit =
      std::function<void(std::span<const std::byte> key, std::span<const std::byte> value)>;

  MapScan(const Map& map, MapCalls& calls, const std::function<reconciler::TimePoint()>& now,
          reconciler::Duration call_limit, std::size_t value_size);

  void begin();
  // Visits up to about `max` elements; true when that was the end. The error is an errno; begin
  // again after one. EAGAIN: elements come faster than they are read, or the same ones again and
  // again.
  [[nodiscard]] std::expected<bool, int> next(bool has_lookup_batch, std::size_t max,
                                              const Visit& visit);
  // Call before elements are deleted: `going` says which. Where the kernel goes on from a key, and
  // starts again when that key is gone, the scan first moves on to one that stays.
  void step_over(const std::function<bool(std::span<const std::byte> key)>& going);

 private:
  [[nodiscard]] std::expected<bool, int> next_batch(std::size_t max, const Visit& visit);
  [[nodiscard]] std::expected<bool, int> next_singly(std::size_t max, const Visit& visit);
  [[nodiscard]] int lookup_batch(std::size_t size, std::uint32_t& count);
  void advance();

  const Map& map_;
  MapCalls& calls_;
  const std::function<reconciler::TimePoint()>& now_;
  std::size_t value_size_;
  BatchSize batch_size_;
  std::size_t smallest_;  // what holds the fullest bucket seen
  bool started_ = false;
  bool ended_ = false;
  std::uint64_t visited_ = 0;
  std::vector<std::byte> cursor_;
  std::vector<std::byte> next_cursor_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::pair<std::vector<std::byte>, std::vector<std::byte>>>
      stepped_over_;  // still to visit
};

}  // namespace mapgate::maps
