// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mapgate/maps/row.h>

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "agent/dns/answer_gate.h"
#include "agent/policy/spec.h"

namespace mapgate::engine {

// A DNS answer that waits for its rows.
struct HeldAnswer {
  dns::WorkloadId workload = 0;
  std::string name;
  std::vector<maps::RowKey> rows;  // all that it needs, those that the kernel has too
  dns::TimePoint since{};
  dns::TimePoint deadline{};
};

// The answers that are held, oldest first; as many as the settings allow. Not thread-safe.
class HeldAnswers {
 public:
  using List = std::list<HeldAnswer>;
  using Place = List::const_iterator;

  explicit HeldAnswers(const policy::DnsSettings& settings)
      : max_(settings.max_held_answers),
        max_per_workload_(settings.max_held_answers_per_workload) {}

  [[nodiscard]] bool has_room(dns::WorkloadId workload) const;
  // Where there is room. The place is valid until it is removed.
  Place add(HeldAnswer answer);
  void remove(Place place);
  [[nodiscard]] const List& list() const { return answers_; }

 private:
  const std::size_t max_;
  const std::size_t max_per_workload_;
  List answers_;
  boost::unordered_flat_map<dns::WorkloadId, std::size_t> by_workload_;
};

}  // namespace mapgate::engine
