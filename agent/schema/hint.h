// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "agent/policy/layout.h"

namespace mapgate::schema {

// Changes how the part at `path` ("addr", "peer.port"; empty: all of it) is written. Of an array,
// it is about the elements where it cannot be about the whole. The error is a reason for people.
[[nodiscard]] std::expected<void, std::string> apply_hint(policy::Layout& layout,
                                                          std::string_view path,
                                                          policy::LayoutHint hint);

}  // namespace mapgate::schema
