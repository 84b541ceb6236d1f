// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <string>

#include <mapgate/maps/map_operations.h>
#include <spdlog/logger.h>

namespace mapgate::engine {

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
