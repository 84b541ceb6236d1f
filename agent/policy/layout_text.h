// SPDX-License-Identifier: Apache-2.0
// The layouts that a spec describes itself. Internal to agent/policy.
#pragma once

#include <optional>

#include "agent/policy/layout.h"
#include "agent/policy/spec_fields.h"

namespace mapgate::policy {

// A type by name ("u32", "be16", "ipv4", "char[16]", "u8[6]"), or a mapping: a struct, with its
// fields aligned as C does. Empty after a fault, which is reported.
[[nodiscard]] std::optional<Layout> read_layout(SpecErrors& errors, const Place& place);

// A field that programs leave zero: pad, _pad1, __unused, reserved2 and the like.
[[nodiscard]] bool is_padding_name(std::string_view name);

}  // namespace mapgate::policy
