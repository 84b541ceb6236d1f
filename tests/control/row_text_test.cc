// SPDX-License-Identifier: Apache-2.0
#include "agent/control/row_text.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <initializer_list>

#include <gtest/gtest.h>

#include "agent/policy/address.h"
#include "bpf/abi.h"

namespace mapgate::control {
namespace {

constexpr policy::MapIndices kIndices{.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3};

class RowTextTest : public testing::Test {
 protected:
  RowTextTest() {
    EXPECT_TRUE(allocations_.restore_workload("web", 1));
    EXPECT_TRUE(allocations_.restore_port_set("web", "tcp:443", 0));
    EXPECT_TRUE(allocations_.restore_port_set("web", "all", 63));
  }
  [[nodiscard]] RowText text() const { return RowText(allocations_, kIndices); }

  static maps::RowKey address(const char* text) {
    mg_address_key key{};
    key.workload = 1;
    std::ranges::copy(policy::IpAddress::parse(text)->bytes(), key.address);
    return maps::RowKey::of(kIndices.addresses, key);
  }
  static maps::RowKey prefix(const char* text, unsigned length) {
    mg_prefix_key key{};
    key.prefixlen = 32 + length;
    key.workload = 1;
    std::ranges::copy(policy::IpAddress::parse(text)->bytes(), key.address);
    return maps::RowKey::of(kIndices.prefixes, key);
  }
  static maps::RowKey port(unsigned bits, std::uint16_t protocol, std::uint16_t number) {
    mg_port_key key{};
    key.prefixlen = 32 + bits;
    key.workload = 1;
    key.protocol = htons(protocol);
    key.port = htons(number);
    return maps::RowKey::of(kIndices.ports, key);
  }

  policy::Allocations allocations_;
};

TEST_F(RowTextTest, Keys) {
  EXPECT_EQ(text().key(address("192.0.2.1")), "192.0.2.1");
  EXPECT_EQ(text().key(address("2001:db8::1")), "2001:db8::1");
  EXPECT_EQ(text().key(prefix("10.0.0.0", 104)), "10.0.0.0/8");
  EXPECT_EQ(text().key(prefix("0.0.0.0", 96)), "0.0.0.0/0");
  EXPECT_EQ(text().key(prefix("2001:db8::", 32)), "2001:db8::/32");
  EXPECT_EQ(text().key(prefix("::", 0)), "::/0");
  EXPECT_EQ(text().key(port(32, IPPROTO_TCP, 443)), "tcp:443");
  EXPECT_EQ(text().key(port(26, IPPROTO_UDP, 8000)), "udp:8000-8063");
  EXPECT_EQ(text().key(port(16, IPPROTO_ICMPV6, 0)), "icmpv6");
  EXPECT_EQ(text().key(port(0, 0, 0)), "all");
}

TEST_F(RowTextTest, PortSetsHaveTheNamesOfTheSpec) {
  EXPECT_EQ(text().port_sets(1, 1), (std::vector<std::string>{"tcp:443"}));
  EXPECT_EQ(text().port_sets(1, 1 | std::uint64_t{1} << 63),
            (std::vector<std::string>{"tcp:443", "all"}));
  EXPECT_EQ(text().port_sets(1, 2), (std::vector<std::string>{"bit 1"})) << "nobody knows it";
  EXPECT_TRUE(text().port_sets(1, 0).empty());
}

TEST_F(RowTextTest, ARowThatIsErasedHasNoValue) {
  EXPECT_EQ(text().describe(address("192.0.2.1"), std::nullopt).dump(),
            R"({"map":"mg_addresses","workload":"web","address":"192.0.2.1"})");
  EXPECT_EQ(text().describe(address("192.0.2.1"), maps::row_value(mg_port_sets{1})).dump(),
            R"({"map":"mg_addresses","workload":"web","address":"192.0.2.1","ports":["tcp:443"]})");
}

TEST_F(RowTextTest, SettingsOfAWorkload) {
  const auto key = maps::RowKey::of(kIndices.workloads, std::uint32_t{1});
  const mg_workload settings{.mode = MG_MODE_AUDIT, .flags = MG_WORKLOAD_ALLOW_LOOPBACK};
  EXPECT_EQ(text().describe(key, maps::row_value(settings)).dump(),
            R"({"map":"mg_workloads","workload":"web","mode":"audit","allow_loopback":true})");
}

}  // namespace
}  // namespace mapgate::control
