// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include <nlohmann/json.hpp>

#include "agent/policy/layout.h"
#include "agent/policy/spec_fields.h"

namespace mapgate::schema {

// Writes the value at `place` into `bytes`, as many as the layout has. Padding becomes zero. False
// if the value does not fit the layout: each fault is reported, with the field's place, and `bytes`
// are worth nothing. A union remembers which member was written, so that it reads back as that.
[[nodiscard]] bool encode(policy::Layout& layout, const policy::Place& place,
                          policy::SpecErrors& errors, std::span<std::byte> bytes);

// The value as a document that encode() takes, and makes the same bytes of unless padding is not
// zero. `bytes` are as many as the layout has.
[[nodiscard]] nlohmann::ordered_json decode(const policy::Layout& layout,
                                            std::span<const std::byte> bytes);

}  // namespace mapgate::schema
