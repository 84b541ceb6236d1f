// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/answer_gate.h"

namespace mapgate::dns {

std::string_view to_string(HoldOutcome outcome) {
  switch (outcome) {
    case HoldOutcome::kOpened:
      return "opened";
    case HoldOutcome::kTimedOut:
      return "timed out";
    case HoldOutcome::kFailed:
      return "failed";
    case HoldOutcome::kWithdrawn:
      return "withdrawn";
    case HoldOutcome::kCancelled:
      return "cancelled";
    case HoldOutcome::kShuttingDown:
      return "shutting down";
    case HoldOutcome::kRefused:
      return "refused";
    case HoldOutcome::kOverloaded:
      return "overloaded";
  }
  return "unknown";
}

}  // namespace mapgate::dns
