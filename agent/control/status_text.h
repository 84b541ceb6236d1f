// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/control/api_sources.h"
#include "agent/policy/spec.h"

namespace mapgate::control {

// What GET /v1/status says, see docs/cli.md; `waiters` requests wait.
[[nodiscard]] nlohmann::ordered_json describe_status(const ApiSources& sources,
                                                     std::size_t waiters);

// The faults of a spec, each with its place.
[[nodiscard]] nlohmann::ordered_json describe_faults(const std::vector<policy::SpecError>& faults);

}  // namespace mapgate::control
