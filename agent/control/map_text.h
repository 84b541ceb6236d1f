// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include <mapgate/maps/map_operations.h>
#include <nlohmann/json.hpp>

#include "agent/control/http.h"
#include "agent/engine/declared_maps.h"
#include "agent/engine/types.h"

namespace mapgate::control {

// mapgate's own maps, see docs/cli.md.
[[nodiscard]] nlohmann::ordered_json describe_maps(std::span<const maps::MapStatus> maps);

// Visits rows from place `from` on until `rows`, which the visitor fills, holds `limit` of them, or
// enough places were looked at. Returns the place to go on from; none at the end.
[[nodiscard]] std::optional<std::size_t> list_rows(const engine::Reconciler& reconciler,
                                                   std::size_t from, std::size_t limit,
                                                   const nlohmann::ordered_json& rows,
                                                   const engine::Reconciler::RowVisitor& visit);

// The key of a row, and its value: that of a map of maps is a list, the entries of the inner map.
[[nodiscard]] nlohmann::ordered_json decode_key(const engine::DeclaredTarget& target,
                                                std::span<const std::byte> key);
[[nodiscard]] nlohmann::ordered_json decode_value(const engine::DeclaredTarget& target,
                                                  std::span<const std::byte> value);
// Likewise an element's value as the kernel has it: that of a map of maps is the inner map's id.
// An inner map that no row could be is shown as {"map_id": …, "error": …}.
[[nodiscard]] nlohmann::ordered_json decode_element(maps::MapCalls& calls,
                                                    const engine::DeclaredTarget& target,
                                                    std::span<const std::byte> value);

// Of every map that the spec declares, see docs/cli.md.
[[nodiscard]] nlohmann::ordered_json describe_declared(const engine::DeclaredMaps& maps);

// A page of a declared map's rows in one state, with their errors, deletions included.
[[nodiscard]] nlohmann::ordered_json describe_declared_rows(
    const engine::DeclaredMaps::Entry& entry, std::string_view state, std::size_t from,
    std::size_t limit);

}  // namespace mapgate::control
