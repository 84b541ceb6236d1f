// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/expired_names.h"

#include <algorithm>
#include <iterator>

namespace mapgate::engine {

void ExpiredNames::add(const dns::CachedAddress& entry) {
  if (entry.name.empty()) return;
  auto& known = by_address_[Key{entry.workload, entry.address}];
  const auto same =
      std::ranges::find_if(known, [&](const auto& pair) { return pair->name == entry.name; });
  if (same != known.end()) return pairs_.splice(pairs_.end(), pairs_, *same);
  pairs_.push_back({{entry.workload, entry.address}, std::string(entry.name)});
  known.push_back(std::prev(pairs_.end()));
  if (pairs_.size() <= max_pairs_) return;

  const auto oldest = by_address_.find(pairs_.front().key);
  std::erase(oldest->second, pairs_.begin());
  if (oldest->second.empty()) by_address_.erase(oldest);
  pairs_.pop_front();
}

std::vector<std::string> ExpiredNames::find(dns::WorkloadId workload,
                                            const policy::IpAddress& address) const {
  std::vector<std::string> names;
  const auto found = by_address_.find(Key{workload, address});
  if (found == by_address_.end()) return names;
  for (const auto& pair : found->second) names.push_back(pair->name);
  return names;
}

}  // namespace mapgate::engine
