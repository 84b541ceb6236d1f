// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include <boost/functional/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include "agent/dns/name_cache.h"
#include "agent/policy/address.h"

namespace mapgate::engine {

// Which names an address had until they expired: connections that were opened by them live on.
// Holds the newest `max_pairs` pairs. Not thread-safe.
class ExpiredNames {
 public:
  explicit ExpiredNames(std::size_t max_pairs) : max_pairs_(max_pairs) {}
  ExpiredNames(const ExpiredNames&) = delete;
  ExpiredNames& operator=(const ExpiredNames&) = delete;

  // One without a name is left out.
  void add(const dns::CachedAddress& entry);
  [[nodiscard]] std::vector<std::string> find(dns::WorkloadId workload,
                                              const policy::IpAddress& address) const;

 private:
  using Key = std::pair<dns::WorkloadId, policy::IpAddress>;
  struct Pair {
    Key key;
    std::string name;
  };
  using Pairs = std::list<Pair>;  // the oldest first

  const std::size_t max_pairs_;
  Pairs pairs_;
  boost::unordered_flat_map<Key, std::vector<Pairs::iterator>, boost::hash<Key>> by_address_;
};

}  // namespace mapgate::engine
