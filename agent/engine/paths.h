// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>

namespace mapgate::engine {

// By their parts, as they are written: the folder itself is inside, too.
[[nodiscard]] inline bool is_inside(const std::filesystem::path& path,
                                    const std::filesystem::path& folder) {
  const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

}  // namespace mapgate::engine
