// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string_view>
#include <variant>

#include <mapgate/reconciler/operations.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler {

enum class GateOutcome : std::uint8_t {
  kOpened,
  kWithdrawn,  // a named row was erased meanwhile
  kFailed,     // a row that it waits for failed permanently
  kTimedOut,
  kCancelled,
  kShuttingDown,
};
[[nodiscard]] std::string_view to_string(GateOutcome outcome);

struct GateResult {
  GateOutcome outcome = GateOutcome::kOpened;
  std::optional<OperationError> error;  // of the first row that failed, with kFailed

  friend bool operator==(const GateResult& a, const GateResult& b) {
    return a.outcome == b.outcome;
  }
};

// Runs once, in the driver's thread, after a round, outside every lock. It may use the table and
// the reconciler. It must not throw: an exception that leaves it ends the program.
using GateCallback = std::move_only_function<void(GateResult)>;

// Names an open gate; never reused.
struct GateId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;

  friend bool operator==(const GateId&, const GateId&) = default;
};

// Why no gate was made.
enum class GateRefusal : std::uint8_t {
  kOtherEpoch,      // the revision is of another start of the table
  kFutureRevision,  // the revision has not been handed out
  kTooMany,         // Options::max_gates are open
};
[[nodiscard]] std::string_view to_string(GateRefusal refusal);

// A gate that has its outcome at once (the callback is dropped unused), or an open one.
using GateTicket = std::expected<std::variant<GateResult, GateId>, GateRefusal>;

}  // namespace mapgate::reconciler
