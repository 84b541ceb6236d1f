// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/capacity_log.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

namespace mapgate::engine {
namespace {

class CapacityLogTest : public testing::Test {
 protected:
  void fill(std::uint64_t entries, bpf_map_type type = BPF_MAP_TYPE_HASH) {
    maps::MapStatus map;
    map.info.type = type;
    map.info.name = "mg_test";
    map.info.max_entries = 100;
    map.entries = entries;
    capacity.update({{map}});
  }
  // What was logged since the last call.
  std::string logged() {
    std::string text = text_.str();
    text_.str({});
    return text;
  }

  std::ostringstream text_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::ostream_sink_st>(text_)};
  CapacityLog capacity{log_};
};

TEST_F(CapacityLogTest, SaysOnceThatAMapIsNearlyFullAndOnceThatItHasRoomAgain) {
  fill(79);
  EXPECT_EQ(logged(), "");
  fill(80);
  EXPECT_THAT(logged(), testing::HasSubstr("map mg_test is nearly full: 80 of 100 entries"));
  fill(81);
  fill(100);
  EXPECT_EQ(logged(), "");
  fill(74);
  EXPECT_THAT(logged(), testing::HasSubstr("map mg_test has room again: 74 of 100 entries"));
  fill(10);
  EXPECT_EQ(logged(), "");
}

TEST_F(CapacityLogTest, OneRowMoreOrLessAtTheThresholdIsNoLine) {
  fill(80);
  (void)logged();
  for (int i = 0; i < 10; ++i) {
    fill(79);
    fill(80);
  }
  EXPECT_EQ(logged(), "");
}

TEST_F(CapacityLogTest, AnArrayIsAlwaysFullAndSaysNothing) {
  fill(100, BPF_MAP_TYPE_ARRAY);
  EXPECT_EQ(logged(), "");
}

}  // namespace
}  // namespace mapgate::engine
