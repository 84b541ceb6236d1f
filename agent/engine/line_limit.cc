// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/line_limit.h"

#include <utility>

namespace mapgate::engine {

bool LineLimit::allow(TimePoint now, std::uint64_t& suppressed) {
  suppressed = 0;
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    lines_ = 0;
    suppressed = std::exchange(suppressed_, 0);
  }
  if (lines_ >= per_second_) {
    ++suppressed_;
    return false;
  }
  ++lines_;
  return true;
}

}  // namespace mapgate::engine
