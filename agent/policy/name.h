// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mapgate::policy {

inline constexpr std::size_t kMaxNameLength = 253;  // text without the trailing dot, RFC 1035 2.3.4
inline constexpr std::size_t kMaxLabelLength = 63;

// The one spelling of a DNS name that everything compares by: lower case, no trailing dot ("" is
// the root). Empty when the text is no name: empty or too long labels, a name that is too long, or
// characters that are not printable ASCII. Escapes (\., \046) are refused as well, so that a label
// with a dot inside never passes for two labels; hand in a wire name only with such labels escaped.
[[nodiscard]] std::optional<std::string> normalize_name(std::string_view text);

}  // namespace mapgate::policy
