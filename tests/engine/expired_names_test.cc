// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/expired_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mapgate::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const policy::IpAddress kFirst = policy::IpAddress::parse("192.0.2.1").value();
const policy::IpAddress kSecond = policy::IpAddress::parse("192.0.2.2").value();

dns::CachedAddress entry(dns::WorkloadId workload, std::string_view name,
                         const policy::IpAddress& address) {
  return {.workload = workload, .name = name, .address = address};
}

TEST(ExpiredNames, AreFoundByWorkloadAndAddress) {
  ExpiredNames names(10);
  names.add(entry(1, "a.test", kFirst));
  names.add(entry(1, "b.test", kFirst));
  names.add(entry(1, "b.test", kFirst));
  names.add(entry(2, "c.test", kFirst));
  names.add(entry(1, "", kSecond));
  EXPECT_THAT(names.find(1, kFirst), ElementsAre("a.test", "b.test"));
  EXPECT_THAT(names.find(2, kFirst), ElementsAre("c.test"));
  EXPECT_THAT(names.find(1, kSecond), IsEmpty()) << "nobody knows its name";
}

TEST(ExpiredNames, TheOldestGoBeyondTheLimit) {
  ExpiredNames names(2);
  names.add(entry(1, "a.test", kFirst));
  names.add(entry(1, "b.test", kSecond));
  names.add(entry(1, "a.test", kFirst));
  names.add(entry(1, "c.test", kSecond));
  EXPECT_THAT(names.find(1, kFirst), ElementsAre("a.test"));
  EXPECT_THAT(names.find(1, kSecond), ElementsAre("c.test"));
}

}  // namespace
}  // namespace mapgate::engine
