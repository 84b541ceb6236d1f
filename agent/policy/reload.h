// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mapgate/maps/row.h>
#include <expected>
#include <string>
#include <vector>

#include "agent/policy/compile.h"

namespace mapgate::policy {

struct ReloadPhase {
  std::vector<Row> write;
  std::vector<maps::RowKey> erase;

  [[nodiscard]] bool empty() const { return write.empty() && erase.empty(); }
};

// How the kernel gets from one policy to the next, such that no packet that both allow is ever
// dropped and nothing is allowed that neither allows. Commit a phase, wait (gate) until all of it
// is realised, then the next. Inside a phase the rows may arrive in any order. Only changes are
// listed, so a phase may be empty.
//
// Four phases, because a rule's exceptions must stand before the prefix around them opens, and fall
// after it closed.
//
// The caller owns two things that static rows do not hold, and fits them in:
//  - learned addresses: values old|new (CompiledPolicy::match of both, ORed) with `widen`, new with
//  `narrow`, where
//    those that open nothing any more are erased. Answers that arrive in between open old|new until
//    `narrow`.
//  - cgroups: bind those of new workloads once `widen` is realised; detach those of removed ones
//  before `narrow`,
//    which makes a removed workload unconfigured, and that denies.
// Until `narrow` is committed a reload can be given up: plan_reload(new, old).narrow and then
// .merge lead back from wherever it stands, with the same guarantee. Once `merge` is realised:
// allocations.release_unused(new.used_allocations()), and store them.
struct ReloadPlan {
  ReloadPhase split;   // structure only, verdicts stay; and all prefixes and ports of new workloads
  ReloadPhase widen;   // what the old or the new policy allows
  ReloadPhase narrow;  // what the new policy allows
  ReloadPhase
      merge;  // structure only, verdicts stay; and all prefixes and ports of removed workloads
};

// `from` is the policy whose rows the maps hold. Fails, with a reason for people, when old and new
// rows together do not fit `sizes`, the maps as they were made. Both policies must come from the
// same Allocations.
[[nodiscard]] std::expected<ReloadPlan, std::string> plan_reload(const CompiledPolicy& from,
                                                                 const CompiledPolicy& to,
                                                                 const MapSizes& sizes);

}  // namespace mapgate::policy
