// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace mapgate::engine {

// Lets `per_second` lines a second through and counts the others: what others cause must not fill
// the log.
class LineLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit LineLimit(std::uint32_t per_second) : per_second_(per_second) {}

  // Whether this line may be written. `suppressed` becomes how many were not since the last second
  // with any, when a new second begins; else 0.
  [[nodiscard]] bool allow(TimePoint now, std::uint64_t& suppressed);

 private:
  const std::uint32_t per_second_;
  TimePoint second_{};
  std::uint32_t lines_ = 0;
  std::uint64_t suppressed_ = 0;
};

}  // namespace mapgate::engine
