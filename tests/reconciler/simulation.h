// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <mapgate/reconciler/operations.h>

namespace mapgate::reconciler::simulation {

// One thing that happens. Every number is taken modulo what there is, so that a schedule stays
// valid when events are left out of it.
struct Event {
  enum class Kind : std::uint8_t {
    kCommit,     // `changes`
    kAbort,      // `changes`, never committed
    kStep,       // of reconciler `side`, with budget `number`; `meanwhile` happens while it writes
    kFail,       // the next `number` operations on `key` fail with `error`
    kHeal,       // no faults on `key`
    kCapacity,   // the target holds at most `number` entries
    kForeign,    // somebody else writes `key` (number even) or deletes it (odd) in the target
    kResync,     //
    kScanFault,  // scans fail (number odd), or not (even)
    kClock,      // time passes: `number` milliseconds
    kRevisionGate,   // for the `number`-th last revision
    kRowGate,        // for the keys of `changes`
    kCancel,         // the `number`-th gate
    kTargetChanged,  //
    kShutDown,       //
  };
  struct Change {
    int key;
    enum class What : std::uint8_t { kPut, kPutSame, kErase } what;
  };

  Kind kind;
  int side = 0;
  int key = 0;
  std::uint32_t number = 0;
  ErrorClass error = ErrorClass::kTransient;
  std::vector<Change> changes;
  std::vector<Event> meanwhile;
};

using Schedule = std::vector<Event>;

// A schedule drawn from `seed`: the same for the same seed.
[[nodiscard]] Schedule draw(std::uint64_t seed);

// Runs a schedule against the library and against a plain model of what the contracts say. What
// differed, or nothing.
[[nodiscard]] std::optional<std::string> run(const Schedule& schedule);

// Leaves out of a failing schedule what it fails without.
[[nodiscard]] Schedule reduce(Schedule schedule);

[[nodiscard]] std::string describe(const Schedule& schedule);

}  // namespace mapgate::reconciler::simulation
