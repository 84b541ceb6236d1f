// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <string>

#include <mapgate/maps/map_operations.h>
#include <spdlog/logger.h>

namespace mapgate::engine {

// A map this full is reported: there is still time to make it larger.
inline constexpr double kNearlyFull = 0.8;

// The part of a map that is taken, 0 to 1.
[[nodiscard]] double fill_of(const maps::MapStatus& map);

// Logs once when a map becomes nearly full, and once when it has room again.
class CapacityLog {
 public:
  // `log` outlives it.
  explicit CapacityLog(spdlog::logger& log) : log_(log) {}

  void update(std::span<const maps::MapStatus> maps);

 private:
  spdlog::logger& log_;
  std::set<std::string> nearly_full_;  // by name
};

}  // namespace mapgate::engine
