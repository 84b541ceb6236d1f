// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "agent/control/http.h"
#include "agent/engine/declared_maps.h"

namespace mapgate::control {

// Of every map that the spec declares, see docs/cli.md.
[[nodiscard]] nlohmann::ordered_json describe_declared(const engine::DeclaredMaps& maps);

// A page of a declared map's rows in one state, with their errors, deletions included.
[[nodiscard]] nlohmann::ordered_json describe_declared_rows(
    const engine::DeclaredMaps::Entry& entry, std::string_view state, std::size_t from,
    std::size_t limit);

}  // namespace mapgate::control
