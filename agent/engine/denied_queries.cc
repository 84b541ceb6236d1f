// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/denied_queries.h"

#include <fmt/format.h>

namespace mapgate::engine {

std::string describe_denied_query(const dns::DeniedQuery& query, std::string_view workload) {
  return fmt::format("{}: {} DNS query for {} to {}: {}",
                     workload.empty() ? "unknown workload" : workload,
                     query.audited ? "audit: would deny" : "denied",
                     query.name.empty() ? "." : query.name, query.resolver.to_string(),
                     query.reason == dns::DenialReason::kResolver
                         ? "the resolver is none of the workload's resolvers"
                         : "no rule has the name");
}

void DeniedQueries::record(const dns::DeniedQuery& query, std::string_view workload,
                           dns::TimePoint now) {
  OfWorkload& of_workload = by_workload_[query.workload];
  if (!query.audited) ++of_workload.denied;
  std::uint64_t suppressed = 0;
  const bool allowed = of_workload.limit.allow(now, suppressed);
  if (suppressed > 0)
    log_.warn("{}: {} more denied DNS queries were not logged", workload, suppressed);
  if (allowed) log_.warn("{}", describe_denied_query(query, workload));
}

std::uint64_t DeniedQueries::count(dns::WorkloadId workload) const {
  const auto found = by_workload_.find(workload);
  return found == by_workload_.end() ? 0 : found->second.denied;
}

}  // namespace mapgate::engine
