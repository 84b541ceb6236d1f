// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/allocations.h"

#include <gtest/gtest.h>

#include <string>

#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

TEST(Allocations, NumbersStay) {
  Allocations allocations;
  EXPECT_EQ(allocations.workload_id("web"), 1U);
  EXPECT_EQ(allocations.workload_id("db"), 2U);
  EXPECT_EQ(allocations.workload_id("web"), 1U);
  EXPECT_EQ(allocations.port_set_bit("web", "tcp:443"), 0);
  EXPECT_EQ(allocations.port_set_bit("web", "tcp:80"), 1);
  EXPECT_EQ(allocations.port_set_bit("db", "tcp:80"), 0);
  EXPECT_EQ(allocations.port_set_bit("web", "tcp:443"), 0);
}

TEST(Allocations, ReleasedNumbersAreUsedAgainAndOthersStay) {
  Allocations allocations;
  ASSERT_EQ(allocations.workload_id("web"), 1U);
  ASSERT_EQ(allocations.workload_id("db"), 2U);
  ASSERT_EQ(allocations.port_set_bit("db", "tcp:80"), 0);
  ASSERT_EQ(allocations.port_set_bit("db", "tcp:81"), 1);
  allocations.release_unused({{"db", {.id = 2, .port_sets = {{"tcp:81", 1}}}}});
  EXPECT_EQ(allocations.workload_id("db"), 2U);
  EXPECT_EQ(allocations.port_set_bit("db", "tcp:81"), 1);
  EXPECT_EQ(allocations.workload_id("mail"), 1U);
  EXPECT_EQ(allocations.port_set_bit("db", "tcp:82"), 0);
}

TEST(Allocations, RunOutWithoutHarm) {
  Allocations allocations;
  for (unsigned i = 1; i < MG_MAX_WORKLOADS; ++i)
    ASSERT_EQ(allocations.workload_id("w" + std::to_string(i)), i);
  EXPECT_FALSE(allocations.workload_id("one more"));
  EXPECT_EQ(allocations.workload_id("w7"), 7U);
  for (int i = 0; i < MG_MAX_PORT_SETS; ++i)
    ASSERT_EQ(allocations.port_set_bit("w1", std::to_string(i)), i);
  EXPECT_FALSE(allocations.port_set_bit("w1", "one more"));
}

TEST(Allocations, RestoreRefusesContradictions) {
  Allocations allocations;
  EXPECT_TRUE(allocations.restore_workload("web", 3));
  EXPECT_FALSE(allocations.restore_workload("web", 4));
  EXPECT_FALSE(allocations.restore_workload("db", 3));
  EXPECT_FALSE(allocations.restore_workload("db", 0));
  EXPECT_FALSE(allocations.restore_workload("db", MG_MAX_WORKLOADS));
  EXPECT_TRUE(allocations.restore_port_set("web", "all", 63));
  EXPECT_FALSE(allocations.restore_port_set("web", "tcp:80", 63));
  EXPECT_FALSE(allocations.restore_port_set("web", "all", 5));
  EXPECT_FALSE(allocations.restore_port_set("web", "tcp:80", 64));
  EXPECT_FALSE(allocations.restore_port_set("db", "all", 0));
  EXPECT_EQ(allocations.workload_id("web"), 3U);
  EXPECT_EQ(allocations.port_set_bit("web", "all"), 63);
}

}  // namespace
}  // namespace mapgate::policy
