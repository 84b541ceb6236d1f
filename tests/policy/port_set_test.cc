// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/port_set.h"

#include <gtest/gtest.h>

namespace mapgate::policy {
namespace {

TEST(PortSet, EqualSetsHaveOneTextWhateverTheyWereMadeOf) {
  const PortSet one({{kTcp, 80, 100}});
  const PortSet other({{kTcp, 90, 100}, {kTcp, 80, 85}, {kTcp, 84, 89}, {kTcp, 99, 99}});
  EXPECT_EQ(one, other);
  EXPECT_EQ(other.to_string(), "tcp:80-100");
}

TEST(PortSet, TextIsSortedByProtocolAndPort) {
  const PortSet set({{kUdp, 53, 53},
                     {kTcp, 443, 443},
                     {kIcmpV6, 128, 128},
                     {kIcmp, 8, 8},
                     {kTcp, 53, 53},
                     {kSctp, 9, 9}});
  EXPECT_EQ(set.to_string(), "icmp:8,tcp:53,tcp:443,udp:53,icmpv6:128,sctp:9");
}

TEST(PortSet, DoesNotJoinProtocols) {
  EXPECT_EQ(PortSet({{kTcp, 65535, 65535}, {kUdp, 0, 0}}).to_string(), "tcp:65535,udp:0");
}

TEST(PortSet, ContainsItsRangesOnly) {
  const PortSet set({{kTcp, 80, 90}});
  EXPECT_TRUE(set.contains(kTcp, 80));
  EXPECT_TRUE(set.contains(kTcp, 90));
  EXPECT_FALSE(set.contains(kTcp, 79));
  EXPECT_FALSE(set.contains(kTcp, 91));
  EXPECT_FALSE(set.contains(kUdp, 80));
  EXPECT_TRUE(PortSet::everything().contains(47, 0));
  EXPECT_FALSE(PortSet().contains(kTcp, 80));
  EXPECT_FALSE(PortSet::everything().contains(kTcp, kEncryptedDnsPort));
  EXPECT_FALSE(PortSet::everything().contains(kUdp, kEncryptedDnsPort));
  EXPECT_TRUE(PortSet::everything().contains(kSctp, kEncryptedDnsPort));
  EXPECT_TRUE(PortSet({{kTcp, 853, 853}}).contains(kTcp, kEncryptedDnsPort));
}

}  // namespace
}  // namespace mapgate::policy
