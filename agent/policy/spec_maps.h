// SPDX-License-Identifier: Apache-2.0
// Reading the maps that a spec declares. Internal to agent/policy.
#pragma once

#include <string_view>
#include <vector>

#include "agent/policy/map_spec.h"
#include "agent/policy/spec_fields.h"

namespace mapgate::policy {

// `file` is the spec's: entriesFrom is relative to its folder.
[[nodiscard]] std::vector<MapSpec> read_declared_maps(SpecErrors& errors, const Place& place,
                                                      std::string_view file);

}  // namespace mapgate::policy
