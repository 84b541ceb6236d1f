// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/address.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace mapgate::policy {
namespace {

Prefix prefix(std::string_view text) {
  return Prefix::parse(text).value();
}
IpAddress address(std::string_view text) {
  return IpAddress::parse(text).value();
}

TEST(IpAddress, FormatsWhatItParses) {
  for (std::string_view text :
       {"10.0.0.1", "0.0.0.0", "255.255.255.255", "2001:db8::1", "::", "::1"}) {
    EXPECT_EQ(address(text).to_string(), text);
  }
}

TEST(IpAddress, MappedIpv6IsTheIpv4Address) {
  EXPECT_EQ(address("::ffff:192.0.2.1"), address("192.0.2.1"));
  EXPECT_TRUE(address("::ffff:192.0.2.1").is_v4());
  EXPECT_EQ(address("::ffff:192.0.2.1").to_string(), "192.0.2.1");
  EXPECT_FALSE(address("::192.0.2.1").is_v4());
}

TEST(IpAddress, IsWrittenWithAPort) {
  EXPECT_EQ(address("192.0.2.1").with_port(53), "192.0.2.1:53");
  EXPECT_EQ(address("2001:db8::1").with_port(443), "[2001:db8::1]:443");
}

TEST(IpAddress, KnowsLoopback) {
  for (const char* text : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(address(text).is_loopback()) << text;
  for (const char* text : {"128.0.0.1", "::", "::2", "7f00::1"})
    EXPECT_FALSE(address(text).is_loopback()) << text;
}

TEST(IpAddress, RefusesWhatIsNoAddress) {
  using namespace std::string_view_literals;
  for (std::string_view text : std::initializer_list<std::string_view>{
           "", " 10.0.0.1", "10.0.0.1 ", "10.0.0", "10.0.0.256", "010.0.0.1", "0x0a.0.0.1",
           "fe80::1%eth0", "1::2::3", "10.0.0.1/8", "example.com", "10.0.0.1\0x"sv}) {
    EXPECT_FALSE(IpAddress::parse(text)) << text;
  }
}

TEST(Prefix, FormatsWhatItParses) {
  for (std::string_view text :
       {"10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "::1/128"}) {
    EXPECT_EQ(prefix(text).to_string(), text);
  }
}

TEST(Prefix, AnAddressAloneIsItself) {
  EXPECT_EQ(prefix("192.0.2.1"), prefix("192.0.2.1/32"));
  EXPECT_EQ(prefix("2001:db8::1"), prefix("2001:db8::1/128"));
}

TEST(Prefix, RefusesWhatIsNoPrefix) {
  for (std::string_view text :
       {"", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8/8", "10.0.0.0/08",
        "10.0.0.0/+8", "::/129", "10.0.0.0/8 ", "10.0.0/8", "10.0.0.0/4294967304"}) {
    EXPECT_FALSE(Prefix::parse(text)) << text;
  }
}

TEST(Prefix, RefusesHostBits) {
  for (std::string_view text :
       {"10.0.0.1/8", "10.128.0.0/8", "0.0.0.1/0", "2001:db8::1/64", "2001:db8::/28"}) {
    const auto parsed = Prefix::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error(), "has bits set behind its prefix length");
  }
}

TEST(Prefix, ContainsByItsBits) {
  EXPECT_TRUE(prefix("10.0.0.0/8").contains(address("10.255.255.255")));
  EXPECT_FALSE(prefix("10.0.0.0/8").contains(address("11.0.0.0")));
  EXPECT_TRUE(prefix("10.128.0.0/9").contains(address("10.129.0.0")));
  EXPECT_FALSE(prefix("10.128.0.0/9").contains(address("10.127.0.0")));
  EXPECT_TRUE(prefix("10.0.0.0/8").contains(prefix("10.9.0.0/16")));
  EXPECT_TRUE(prefix("10.0.0.0/8").contains(prefix("10.0.0.0/8")));
  EXPECT_FALSE(prefix("10.9.0.0/16").contains(prefix("10.0.0.0/8")));
  EXPECT_TRUE(prefix("2001:db8::/33").contains(address("2001:db8:7fff::1")));
  EXPECT_FALSE(prefix("2001:db8::/33").contains(address("2001:db8:8000::1")));
}

TEST(Prefix, AllOfIpv6HoldsNoIpv4) {
  EXPECT_FALSE(prefix("::/0").contains(address("10.0.0.1")));
  EXPECT_FALSE(prefix("::/0").contains(prefix("10.0.0.0/8")));
  EXPECT_FALSE(prefix("::/80").contains(prefix("0.0.0.0/0")));
  EXPECT_TRUE(prefix("::/0").contains(address("::1")));
  EXPECT_TRUE(prefix("0.0.0.0/0").contains(address("10.0.0.1")));
  EXPECT_FALSE(prefix("0.0.0.0/0").contains(address("::1")));
}

TEST(Prefix, AMappedPrefixIsTheIpv4Prefix) {
  EXPECT_EQ(prefix("::ffff:10.0.0.0/104"), prefix("10.0.0.0/8"));
}

}  // namespace
}  // namespace mapgate::policy
