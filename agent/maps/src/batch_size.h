// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <mapgate/reconciler/types.h>

namespace mapgate::maps {

// How many elements a batch call may have so that it stays within a time limit, learned from the
// calls before.
class BatchSize {
 public:
  static constexpr std::size_t kSmallest = 8;
  static constexpr std::size_t kLargest = 4096;
  static constexpr std::size_t kLargestBytes = std::size_t{1} << 20;

  BatchSize(reconciler::Duration limit, std::size_t element_bytes)
      : limit_(limit), largest_(std::clamp(kLargestBytes / element_bytes, kSmallest, kLargest)) {}

  [[nodiscard]] std::size_t get() const { return size_; }

  // Shrinks at once, grows by doubling. Half of the limit is the aim: costs vary from call to call.
  void record(std::size_t elements, reconciler::Duration elapsed) {
    if (elements == 0) return;
    const auto cost = std::max<reconciler::Duration::rep>(
        elapsed.count() / static_cast<reconciler::Duration::rep>(elements), 1);
    const auto affordable = static_cast<std::size_t>(limit_.count() / 2 / cost);
    size_ = std::clamp(std::min(affordable, 2 * size_), kSmallest, largest_);
  }

 private:
  reconciler::Duration limit_;
  std::size_t largest_;
  std::size_t size_ = 2 * kSmallest;
};

}  // namespace mapgate::maps
