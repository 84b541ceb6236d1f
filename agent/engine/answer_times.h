// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "agent/dns/answer_gate.h"

namespace mapgate::engine {

// How long something took, many times over: counts in buckets that are a quarter of an octave wide,
// from a microsecond to more than a minute, so a quantile is at most a fifth too large.
class DurationHistogram {
 public:
  using Duration = std::chrono::nanoseconds;

  void add(Duration duration);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] Duration sum() const { return sum_; }
  [[nodiscard]] Duration max() const { return max_; }
  // At least as long as `quantile` (0..1) of all; zero if there are none.
  [[nodiscard]] Duration quantile(double quantile) const;

 private:
  static constexpr std::size_t kBuckets = 108;  // 27 octaves
  [[nodiscard]] static std::size_t bucket_of(Duration duration);
  [[nodiscard]] static Duration upper_bound(std::size_t bucket);

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  Duration sum_{};
  Duration max_{};
};

// Where the time of the answers with addresses went, since the start.
struct AnswerTimes {
  DurationHistogram upstream;  // from the query's arrival to the resolver's answer
  DurationHistogram table;     // until its rows were in the table
  DurationHistogram kernel;    // until the kernel had them; of those that opened
  DurationHistogram release;   // until the answer was sent; of those that opened

  void record(const dns::AnswerRecord& record);
};

}  // namespace mapgate::engine
