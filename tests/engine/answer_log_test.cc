// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/answer_log.h"

#include <gtest/gtest.h>

namespace mapgate::engine {
namespace {

TEST(AnswerLogTest, TheOldestGoesWhenItIsFull) {
  AnswerLog log;
  dns::AnswerRecord record;
  for (std::size_t i = 0; i < AnswerLog::kCapacity + 3; ++i) {
    record.hold.revision = i;
    log.record("web", record);
  }
  ASSERT_EQ(log.answers().size(), AnswerLog::kCapacity);
  EXPECT_EQ(log.answers().front().hold.revision, 3U);
  EXPECT_EQ(log.answers().back().hold.revision, AnswerLog::kCapacity + 2);
}

TEST(AnswerLogTest, ManyAddressesAreCutShort) {
  AnswerLog log;
  const std::vector<dns::LearnedAddress> addresses(1000);
  dns::AnswerRecord record;
  record.addresses = addresses;
  log.record("web", record);
  EXPECT_EQ(log.answers().back().addresses.size(), AnswerTrace::kMaxAddresses);
}

}  // namespace
}  // namespace mapgate::engine
