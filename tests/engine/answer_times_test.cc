// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/answer_times.h"

#include <gtest/gtest.h>

namespace mapgate::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;

TEST(DurationHistogramTest, AQuantileIsAtMostAFifthTooLargeAndNeverTooSmall) {
  for (nanoseconds duration = microseconds(2); duration < minutes(1);
       duration = duration * 11 / 10) {
    DurationHistogram histogram;
    histogram.add(duration);
    histogram.add(minutes(2));  // so that the greatest does not bound it
    EXPECT_GE(histogram.quantile(0.5), duration);
    EXPECT_LE(histogram.quantile(0.5).count(), duration.count() * 5 / 4) << duration.count();
  }
}

TEST(DurationHistogramTest, QuantilesSplitWhatWasAdded) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.99), nanoseconds(0));
  for (int i = 0; i < 98; ++i) histogram.add(microseconds(50));
  histogram.add(milliseconds(700));
  histogram.add(milliseconds(900));
  EXPECT_LT(histogram.quantile(0.5), microseconds(64));
  EXPECT_GE(histogram.quantile(0.99), milliseconds(700));
  EXPECT_EQ(histogram.quantile(1), milliseconds(900));
  EXPECT_EQ(histogram.max(), milliseconds(900));
  EXPECT_EQ(histogram.count(), 100U);
  EXPECT_EQ(histogram.sum(), microseconds(98 * 50) + milliseconds(1600));
}

TEST(DurationHistogramTest, WhatIsOutOfRangeIsCountedAtTheEnds) {
  DurationHistogram histogram;
  histogram.add(nanoseconds(-5));
  histogram.add(nanoseconds(1));
  histogram.add(minutes(60));
  EXPECT_EQ(histogram.count(), 3U);
  EXPECT_LE(histogram.quantile(0.5), microseconds(2));
}

TEST(AnswerTimesTest, AnAnswerThatDidNotOpenHasNoTimeInTheKernel) {
  const dns::TimePoint start{std::chrono::hours(1)};
  dns::AnswerRecord record{.query_arrived = start,
                           .upstream_answered = start + milliseconds(4),
                           .answer_sent = start + milliseconds(20)};
  record.hold = {dns::HoldOutcome::kOpened, 7, start + milliseconds(5), start + milliseconds(15)};
  AnswerTimes times;
  times.record(record);
  EXPECT_EQ(times.upstream.sum(), milliseconds(4));
  EXPECT_EQ(times.table.sum(), milliseconds(1));
  EXPECT_EQ(times.kernel.sum(), milliseconds(10));
  EXPECT_EQ(times.release.sum(), milliseconds(5));
  record.hold.outcome = dns::HoldOutcome::kTimedOut;
  record.hold.realised = {};
  times.record(record);
  EXPECT_EQ(times.table.count(), 2U);
  EXPECT_EQ(times.kernel.count(), 1U);
  EXPECT_EQ(times.release.count(), 1U);
}

}  // namespace
}  // namespace mapgate::engine
