// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/denial_log.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "agent/policy/address.h"

namespace mapgate::engine {
namespace {

mg_denial denial_of(const char* address) {
  mg_denial denial{};
  const policy::IpAddress parsed = policy::IpAddress::parse(address).value();
  std::ranges::copy(parsed.bytes(), denial.address);
  denial.port = htons(443);
  denial.protocol = IPPROTO_TCP;
  denial.hook = MG_HOOK_CONNECT;
  denial.reason = MG_REASON_ADDRESS;
  return denial;
}

TEST(DescribeDenialTest, SaysWhoWhatAndWhy) {
  EXPECT_EQ(describe_denial(denial_of("192.0.2.1"), "web", "curl[7]"),
            "web: denied connect to 192.0.2.1:443 (tcp) by curl[7]: no rule has the address");
}

TEST(DescribeDenialTest, IPv6AddressesAreInBrackets) {
  EXPECT_EQ(describe_denial(denial_of("2001:db8::1"), "", ""),
            "unknown workload: denied connect to [2001:db8::1]:443 (tcp): no rule has the address");
}

TEST(DescribeDenialTest, AuditDoesNotSayDenied) {
  mg_denial denial = denial_of("192.0.2.1");
  denial.audited = 1;
  EXPECT_EQ(describe_denial(denial, "web", ""),
            "web: audit: would deny connect to 192.0.2.1:443 (tcp): no rule has the address");
}

TEST(DescribeDenialTest, NamesTheDnsThatARuleMustOpenByItsPort) {
  mg_denial denial = denial_of("192.0.2.1");
  denial.port = htons(853);
  denial.reason = MG_REASON_PORT;
  EXPECT_EQ(describe_denial(denial, "web", ""),
            "web: denied connect to 192.0.2.1:853 (tcp): a rule has the address, but none names "
            "port 853: DNS that the proxy cannot read");
}

TEST(LineLimitTest, LinesBeyondTheLimitAreCountedAndToldInTheNextSecond) {
  LineLimit limit(2);
  const LineLimit::TimePoint start{std::chrono::hours(1)};
  std::uint64_t suppressed = 0;
  EXPECT_TRUE(limit.allow(start, suppressed));
  EXPECT_TRUE(limit.allow(start, suppressed));
  EXPECT_FALSE(limit.allow(start, suppressed));
  EXPECT_FALSE(limit.allow(start + std::chrono::milliseconds(999), suppressed));
  EXPECT_EQ(suppressed, 0U);
  EXPECT_TRUE(limit.allow(start + std::chrono::seconds(1), suppressed));
  EXPECT_EQ(suppressed, 2U);
}

}  // namespace
}  // namespace mapgate::engine
