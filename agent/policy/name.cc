// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/name.h"

namespace mapgate::policy {

std::optional<std::string> normalize_name(std::string_view text) {
  if (text == ".") return std::string();
  if (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty() || text.size() > kMaxNameLength) return std::nullopt;

  std::string name;
  name.reserve(text.size());
  std::size_t label_length = 0;
  for (char c : text) {
    if (c == '.') {
      if (label_length == 0) return std::nullopt;
      label_length = 0;
    } else {
      const bool printable = c > ' ' && c <= '~';
      if (!printable || c == '\\' || ++label_length > kMaxLabelLength) return std::nullopt;
    }
    name.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  if (label_length == 0) return std::nullopt;
  return name;
}

}  // namespace mapgate::policy
