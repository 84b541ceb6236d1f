// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/answer_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mapgate::engine {
namespace {

constexpr int kFirstOctave = 10;   // 2^10 ns, about a microsecond
constexpr int kBitsPerOctave = 2;  // four buckets

}  // namespace

std::size_t DurationHistogram::bucket_of(Duration duration) {
  const auto ns = static_cast<std::uint64_t>(std::max<Duration::rep>(duration.count(), 0));
  if (ns < 1U << kFirstOctave) return 0;
  const auto octave = static_cast<int>(std::bit_width(ns)) - 1;
  const std::uint64_t part = (ns >> (octave - kBitsPerOctave)) & ((1U << kBitsPerOctave) - 1);
  const std::size_t bucket =
      (static_cast<std::size_t>(octave - kFirstOctave) << kBitsPerOctave) + part + 1;
  return std::min(bucket, kBuckets - 1);
}

DurationHistogram::Duration DurationHistogram::upper_bound(std::size_t bucket) {
  if (bucket == 0) return Duration(1U << kFirstOctave);
  const std::size_t octave = ((bucket - 1) >> kBitsPerOctave) + kFirstOctave;
  const std::uint64_t part = (bucket - 1) & ((1U << kBitsPerOctave) - 1);
  const std::uint64_t parts = (1U << kBitsPerOctave) + part + 1;
  return Duration(static_cast<Duration::rep>(parts << (octave - kBitsPerOctave)));
}

void DurationHistogram::add(Duration duration) {
  ++buckets_[bucket_of(duration)];
  ++count_;
  sum_ += duration;
  max_ = std::max(max_, duration);
}

DurationHistogram::Duration DurationHistogram::quantile(double quantile) const {
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(quantile * static_cast<double>(count_))));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket];
    if (seen >= wanted) return std::min(upper_bound(bucket), max_);
  }
  return max_;
}

void AnswerTimes::record(const dns::AnswerRecord& record) {
  upstream.add(record.upstream_answered - record.query_arrived);
  if (record.hold.committed == dns::TimePoint{}) return;
  table.add(record.hold.committed - record.upstream_answered);
  if (record.hold.outcome != dns::HoldOutcome::kOpened) return;
  kernel.add(record.hold.realised - record.hold.committed);
  if (record.answer_sent != dns::TimePoint{})
    release.add(record.answer_sent - record.hold.realised);
}

}  // namespace mapgate::engine
