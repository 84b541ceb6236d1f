// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/capacity_log.h"

namespace mapgate::engine {
namespace {

// Below it a map has room again: not at kNearlyFull itself, where one row more or less would be a
// line each.
constexpr double kRoomAgain = 0.75;

}  // namespace

double fill_of(const maps::MapStatus& map) {
  return map.info.max_entries == 0
             ? 0.0
             : static_cast<double>(map.entries) / static_cast<double>(map.info.max_entries);
}

void CapacityLog::update(std::span<const maps::MapStatus> maps) {
  for (const maps::MapStatus& map : maps) {
    const double fill = fill_of(map);
    if (fill >= kNearlyFull && nearly_full_.insert(map.info.name).second)
      log_.warn("map {} is nearly full: {} of {} entries", map.info.name, map.entries,
                map.info.max_entries);
    else if (fill < kRoomAgain && nearly_full_.erase(map.info.name) > 0)
      log_.info("map {} has room again: {} of {} entries", map.info.name, map.entries,
                map.info.max_entries);
  }
}

}  // namespace mapgate::engine
