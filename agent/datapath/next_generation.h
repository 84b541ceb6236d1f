// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/datapath/datapath.h"
#include "agent/datapath/found_maps.h"
#include "agent/datapath/map_copy.h"
#include "agent/datapath/program_set.h"

namespace mapgate::datapath {

// Programs that are loaded to take the place of others, on the same maps where these fit.
struct NextGeneration {
  ProgramSet set;
  std::vector<std::string> replaced;  // maps that are new: in the place of a found one
  std::vector<MapCopy> copies;        // fill them; those in `unfilled` are not among them
  std::vector<std::string> unfilled;  // have another layout than the one found, and are empty
};

// `names` are replaced even if they fit. EINVAL: a map that is in use has another layout, and its
// contents cannot be made anew.
[[nodiscard]] Result<NextGeneration> load_next_generation(const Options& options,
                                                          const FoundMaps& found,
                                                          const std::vector<std::string>& names);

// Can replace_maps() give this map a successor?
[[nodiscard]] bool is_replaceable(const std::string& map);

}  // namespace mapgate::datapath
