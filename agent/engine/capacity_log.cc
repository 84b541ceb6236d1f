// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/capacity_log.h"

namespace mapgate::engine {

void CapacityLog::update(std::span<const maps::MapStatus> maps) {
  for (const maps::MapStatus& map : maps) {
    if (map.is_nearly_full() && nearly_full_.insert(map.info.name).second)
      log_.warn("map {} is nearly full: {} of {} entries", map.info.name, map.entries,
                map.info.max_entries);
    else if (map.has_room_again() && nearly_full_.erase(map.info.name) > 0)
      log_.info("map {} has room again: {} of {} entries", map.info.name, map.entries,
                map.info.max_entries);
  }
}

}  // namespace mapgate::engine
