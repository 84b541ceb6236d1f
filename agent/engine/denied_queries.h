// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <spdlog/logger.h>
#include <boost/unordered/unordered_flat_map.hpp>

#include "agent/dns/answer_gate.h"
#include "agent/engine/line_limit.h"

namespace mapgate::engine {

// One denied query, for people: "web: denied DNS query for evil.test to 192.0.2.53: no rule has the
// name".
[[nodiscard]] std::string describe_denied_query(const dns::DeniedQuery& query,
                                                std::string_view workload);

// Logs and counts the DNS queries that the policy denies, at most kLinesPerSecond of a workload:
// one that asks in a loop hides nobody else's. Bounded by the number of workloads.
class DeniedQueries {
 public:
  static constexpr std::uint32_t kLinesPerSecond = 10;

  // `log` outlives it.
  explicit DeniedQueries(spdlog::logger& log) : log_(log) {}

  void record(const dns::DeniedQuery& query, std::string_view workload, dns::TimePoint now);
  // Those that were not audited only.
  [[nodiscard]] std::uint64_t count(dns::WorkloadId workload) const;

 private:
  struct OfWorkload {
    LineLimit limit{kLinesPerSecond};
    std::uint64_t denied = 0;
  };

  spdlog::logger& log_;
  boost::unordered_flat_map<dns::WorkloadId, OfWorkload> by_workload_;
};

}  // namespace mapgate::engine
