// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>

namespace mapgate::control {

struct MapEntry {
  std::vector<std::byte> key;
  // One; of a per-CPU map whose CPUs do not agree: each CPU's.
  std::vector<std::vector<std::byte>> values;
};

struct MapPage {
  std::vector<MapEntry> entries;
  std::optional<std::string> next;  // where the next page begins; none: that was the end
};

// Reads about `max` entries of a map as the kernel has them, from where an earlier page ended
// (empty: from the beginning). In batches where the kernel has them for this type, else key by key.
// What others change meanwhile may be missing, or be there twice. The error is one line for people.
[[nodiscard]] std::expected<MapPage, std::string> read_map_page(maps::MapCalls& calls,
                                                                const maps::Map& map,
                                                                std::string_view from,
                                                                std::size_t max);

}  // namespace mapgate::control
