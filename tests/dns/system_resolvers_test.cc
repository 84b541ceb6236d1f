// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/system_resolvers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace mapgate::dns {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<std::string> parsed(std::string_view text) {
  std::vector<std::string> addresses;
  for (const policy::IpAddress& address : parse_nameservers(text))
    addresses.push_back(address.to_string());
  return addresses;
}

policy::IpAddress address(std::string_view text) {
  return policy::IpAddress::parse(text).value();
}

TEST(ParseNameservers, TakesTheNameserverLinesAndNothingElse) {
  EXPECT_THAT(parsed("# nameserver 192.0.2.1\n"
                     "search example.com\n"
                     "nameserver 192.0.2.2\n"
                     "nameserver\t2001:db8::1 \r\n"
                     "nameservers 192.0.2.3\n"
                     "nameserver\n"
                     "nameserver not-an-address\n"
                     "options edns0\n"
                     "nameserver fe80::1%eth0"),
              testing::ElementsAre("192.0.2.2", "2001:db8::1", "fe80::1"));
  EXPECT_TRUE(parsed("").empty());
}

TEST(ParseNameservers, TheUnspecifiedAddressIsLoopbacks) {
  EXPECT_THAT(parsed("nameserver 0.0.0.0\nnameserver ::\n"),
              testing::ElementsAre("127.0.0.1", "::1"));
}

class SystemResolversTest : public testing::Test {
 protected:
  ~SystemResolversTest() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("resolvers-" + std::to_string(getpid()));
  const std::filesystem::path file_ = folder_ / "resolv.conf";
  const TimePoint start_{std::chrono::hours(1)};
};

TEST_F(SystemResolversTest, AreThoseOfEveryFileThatIsThere) {
  std::filesystem::create_directories(folder_);
  std::ofstream(file_) << "nameserver 127.0.0.53\n";
  std::ofstream(folder_ / "upstreams") << "nameserver 192.0.2.53\n";
  SystemResolvers resolvers({file_, folder_ / "missing", folder_ / "upstreams"});
  EXPECT_TRUE(resolvers.contains(address("127.0.0.53"), start_));
  EXPECT_TRUE(resolvers.contains(address("192.0.2.53"), start_));
  EXPECT_FALSE(resolvers.contains(address("192.0.2.54"), start_));
}

TEST_F(SystemResolversTest, FollowTheFileWithinASecond) {
  std::filesystem::create_directories(folder_);
  SystemResolvers resolvers({file_});
  EXPECT_FALSE(resolvers.contains(address("192.0.2.53"), start_));
  std::ofstream(file_) << "nameserver 192.0.2.53\n";
  EXPECT_FALSE(resolvers.contains(address("192.0.2.53"), start_ + milliseconds(900)))
      << "not read for every query";
  EXPECT_TRUE(resolvers.contains(address("192.0.2.53"), start_ + seconds(1)));
  std::filesystem::remove(file_);
  EXPECT_FALSE(resolvers.contains(address("192.0.2.53"), start_ + seconds(2)));
}

}  // namespace
}  // namespace mapgate::dns
