// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/held_answers.h"

#include <utility>

namespace mapgate::engine {

bool HeldAnswers::has_room(dns::WorkloadId workload) const {
  if (answers_.size() >= max_) return false;
  const auto held = by_workload_.find(workload);
  return held == by_workload_.end() || held->second < max_per_workload_;
}

HeldAnswers::Place HeldAnswers::add(HeldAnswer answer) {
  ++by_workload_[answer.workload];
  return answers_.insert(answers_.end(), std::move(answer));
}

void HeldAnswers::remove(Place place) {
  const auto held = by_workload_.find(place->workload);
  if (--held->second == 0) by_workload_.erase(held);
  answers_.erase(place);
}

}  // namespace mapgate::engine
