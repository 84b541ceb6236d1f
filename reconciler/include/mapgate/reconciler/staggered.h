// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace mapgate::reconciler {

// Calls each stage with 0 to count - 1, in order, and each some items behind the stage before it:
// so what one stage prefetches has arrived when the next one reads it, and the memory of many items
// is fetched side by side rather than one after the other.
template <typename... Stages>
void staggered(std::size_t count, const Stages&... stages) {
  const std::size_t lag = count > 1 ? 16 : 0;
  for (std::size_t step = 0; step < count + (sizeof...(stages) - 1) * lag; ++step) {
    std::size_t item = step;  // below 0 it wraps to more than `count`
    ((item < count ? stages(item) : void(), item -= lag), ...);
  }
}

}  // namespace mapgate::reconciler
