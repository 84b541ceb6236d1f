// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/denied_queries.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <sstream>

namespace mapgate::engine {
namespace {

dns::DeniedQuery denied(dns::WorkloadId workload, dns::DenialReason reason, bool audited = false) {
  return {workload, "evil.test", policy::IpAddress::parse("192.0.2.53").value(), reason, audited};
}

TEST(DescribeDeniedQuery, SaysWhoWhatAndWhy) {
  EXPECT_EQ(describe_denied_query(denied(1, dns::DenialReason::kName), "web"),
            "web: denied DNS query for evil.test to 192.0.2.53: no rule has the name");
  EXPECT_EQ(describe_denied_query(denied(1, dns::DenialReason::kResolver, true), "web"),
            "web: audit: would deny DNS query for evil.test to 192.0.2.53: the resolver is none of "
            "the workload's resolvers");
}

TEST(DeniedQueries, OneWorkloadThatAsksInALoopHidesNobodyElses) {
  std::ostringstream text;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_st>(text));
  log.set_pattern("%v");
  DeniedQueries queries(log);
  const dns::TimePoint now{std::chrono::hours(1)};
  for (int i = 0; i < 1000; ++i) queries.record(denied(1, dns::DenialReason::kName), "greedy", now);
  queries.record(denied(2, dns::DenialReason::kName), "web", now);
  queries.record(denied(2, dns::DenialReason::kName, true), "web", now);
  const std::string lines = text.str();
  EXPECT_EQ(std::ranges::count(lines, '\n'), DeniedQueries::kLinesPerSecond + 2);
  EXPECT_NE(lines.find("web: denied"), std::string::npos);
  EXPECT_EQ(queries.count(1), 1000U);
  EXPECT_EQ(queries.count(2), 1U) << "what is audited is not denied";
  EXPECT_EQ(queries.count(3), 0U);
}

}  // namespace
}  // namespace mapgate::engine
