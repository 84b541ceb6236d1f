// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/random_source.h"

#include <sys/random.h>

#include <cstdlib>

namespace mapgate::dns {

std::uint16_t SystemRandom::next16() {
  if (left_ == 0) {
    // Up to 256 bytes come whole and are never interrupted once the pool is ready (getrandom(2)).
    static_assert(sizeof numbers_ <= 256);
    if (getrandom(numbers_.data(), sizeof numbers_, 0) != sizeof numbers_) std::abort();
    left_ = numbers_.size();
  }
  return numbers_[--left_];
}

}  // namespace mapgate::dns
