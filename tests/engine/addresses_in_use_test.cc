// SPDX-License-Identifier: Apache-2.0
// What workloads are connected to keeps its address open when others must go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

class AddressesInUseTest : public EngineTest {
 protected:
  AddressesInUseTest() {
    make_cgroup("web");
    node.dns.max_addresses_per_name = 4;
    node.dns.max_addresses_per_workload = 4;
    restart();
  }
  void SetUp() override {
    const auto started = start(parse(web("{matchPattern: \"*.test\"}")));
    ASSERT_EQ(started.outcome, ApplyOutcome::kApplied);
  }
  void learn(int number) {
    const auto answer = hold("n" + std::to_string(number) + ".test", {address(number)});
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  }
  [[nodiscard]] static std::string address(int number) {
    return "192.0.2." + std::to_string(number);
  }
  [[nodiscard]] bool is_open(int number) const {
    return maps.value("mg_addresses 1 " + address(number)) != 0;
  }
  bool looked(std::size_t times) {
    return run_until([&] { return lists >= times; });
  }
  void count_lists() {
    connections.before_list = [this] { ++lists; };
  }

  std::size_t lists = 0;
};

TEST_F(AddressesInUseTest, OneWithAConnectionOutlivesOneWithout) {
  count_lists();
  learn(1);
  learn(2);
  connections.add(address(1));
  EXPECT_EQ(lists, 0U) << "nobody needs to know";
  learn(3);
  ASSERT_TRUE(looked(1));
  learn(4);
  learn(5);
  ASSERT_TRUE(run_until([&] { return !is_open(2); }));
  EXPECT_TRUE(is_open(1));
  EXPECT_EQ(engine->names().counters().evicted_in_use, 0U);
}

TEST_F(AddressesInUseTest, WithoutAListTheLeastRecentlyResolvedGoes) {
  count_lists();
  connections.list_failure = "no sock_diag";
  connections.add(address(1));
  for (int number = 1; number <= 3; ++number) learn(number);
  ASSERT_TRUE(looked(1));
  learn(4);
  learn(5);
  EXPECT_TRUE(run_until([&] { return !is_open(1); }));
}

}  // namespace
}  // namespace mapgate::engine::test
