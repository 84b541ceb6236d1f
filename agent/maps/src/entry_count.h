// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace mapgate::maps {

// How many elements a map holds: what a scan has found, corrected by our own changes since. The
// kernel does not count, and what others change shows only in the next scan.
class EntryCount {
 public:
  [[nodiscard]] std::uint64_t get() const { return count_; }

  void inserted() {
    ++count_;
    ++inserted_;
  }
  void removed() {
    count_ -= std::min<std::uint64_t>(count_, 1);
    ++removed_;
  }

  void begin_scan() { inserted_ = removed_ = 0; }
  // Whether the scan saw what we changed beside it depends on where it stood. So it leaves a range,
  // and the count is in it already unless others have changed the map.
  void end_scan(std::uint64_t seen) {
    count_ = std::clamp(count_, seen - std::min(seen, removed_), seen + inserted_);
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t inserted_ = 0;  // since the scan began
  std::uint64_t removed_ = 0;
};

}  // namespace mapgate::maps
