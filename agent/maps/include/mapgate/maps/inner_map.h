// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/row.h>

namespace mapgate::maps {

// A row of a hash or array of maps has a whole inner map as its value: the inner map's entries in
// the order of their keys' bytes, each its key and then its value, without gaps. An array's zeros
// are left out, LPM keys are canonical. So equal contents have equal bytes, no bytes are an empty
// inner map, and all of it has at most RowValue::kMaxSize bytes.
//
// An inner map is never changed: a new one is made, filled, frozen, and put in the place of the old
// one.

using InnerEntry = std::pair<std::vector<std::byte>, std::vector<std::byte>>;  // key, value

// The value of a row whose inner map, one as `inner` describes, holds `entries`, in any order.
// Else what is wrong with them: sizes, a key twice, too many, more than a row can hold.
[[nodiscard]] std::expected<RowValue, std::string> inner_map_value(const MapInfo& inner,
                                                                   std::vector<InnerEntry> entries);

// What the map `id` holds, as such a value. The error is for people: it is gone, made another way
// than `inner` says, or holds more than a row can.
[[nodiscard]] std::expected<RowValue, std::string> read_inner_map(std::uint32_t id,
                                                                  const MapInfo& inner,
                                                                  MapCalls& calls);

// Why `value` is no such value, as text; empty if it is one.
[[nodiscard]] std::string inner_map_problem(const MapInfo& inner, std::span<const std::byte> value);

// Calls visit(key, value) for each entry of a value that has no problem.
void for_each_inner_entry(
    const MapInfo& inner, std::span<const std::byte> value,
    const std::function<void(std::span<const std::byte>, std::span<const std::byte>)>& visit);

}  // namespace mapgate::maps
