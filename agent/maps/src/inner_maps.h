// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <mapgate/maps/inner_map.h>
#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::maps {

// Makes and reads the inner maps of one map of maps. `calls` and `now` must outlive it.
class InnerMaps {
 public:
  InnerMaps(MapInfo description, MapCalls& calls, std::function<reconciler::TimePoint()> now,
            reconciler::Duration call_limit);

  // Why inner maps cannot be as described; empty if they can.
  [[nodiscard]] static std::string unsuitable(const MapInfo& description);

  [[nodiscard]] const MapInfo& description() const { return description_; }
  // A new map that holds `value`, frozen: programs can write to it, nobody else.
  [[nodiscard]] std::expected<Map, MapError> make(std::span<const std::byte> value);
  // What the map `id` holds, as the value of a row. kOther if it is another kind of map than
  // described, or holds more than a row can: no row has that value. ENOENT: it is gone.
  [[nodiscard]] std::expected<RowValue, int> read(std::uint32_t id);
  static const RowValue kOther;

 private:
  [[nodiscard]] int fill(const Map& map, std::span<const std::byte> value);

  MapInfo description_;
  MapCalls& calls_;
  std::function<reconciler::TimePoint()> now_;
  reconciler::Duration call_limit_;
};

}  // namespace mapgate::maps
