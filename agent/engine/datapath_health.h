// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mapgate::engine {

// What others have done to the datapath, since the start.
struct DatapathHealth {
  std::uint64_t inspections = 0;
  std::uint64_t repaired = 0;
  std::string last_repair;            // empty: none
  std::vector<std::string> problems;  // of now
};

}  // namespace mapgate::engine
