// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_operations.h>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// Copies every element of a map to another one of the same layout, in slices. Nobody may write
// either of them meanwhile. Hash, LPM trie and array maps.
class MapCopy {
 public:
  // Duplicates the descriptors.
  [[nodiscard]] static Result<MapCopy> create(int from, int to);

  // Copies about `elements` more; true once everything is copied. ENOSPC: `to` is too small; the
  // error says how many elements there are.
  [[nodiscard]] Result<bool> next(std::size_t elements);

 private:
  MapCopy(std::unique_ptr<maps::KernelMapCalls> calls, maps::MapOperations from,
          maps::MapOperations to);

  std::unique_ptr<maps::KernelMapCalls> calls_;  // the operations refer to it
  maps::MapOperations from_;
  maps::MapOperations to_;
  std::size_t read_ = 0;
  bool too_small_ = false;
};

}  // namespace mapgate::datapath
