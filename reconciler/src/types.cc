// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/types.h>

#include <mapgate/reconciler/gate.h>

namespace mapgate::reconciler {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

bool has_dash_before(std::size_t byte) {
  return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

std::optional<std::uint8_t> hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<std::uint8_t>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<std::uint8_t>(digit - 'a' + 10);
  if (digit >= 'A' && digit <= 'F') return static_cast<std::uint8_t>(digit - 'A' + 10);
  return std::nullopt;
}

}  // namespace

Epoch Epoch::from_random(std::uint64_t high, std::uint64_t low) {
  Epoch epoch;
  for (std::size_t i = 0; i < 8; ++i) {
    epoch.bytes[i] = static_cast<std::uint8_t>(high >> (56 - 8 * i));
    epoch.bytes[8 + i] = static_cast<std::uint8_t>(low >> (56 - 8 * i));
  }
  epoch.bytes[6] = static_cast<std::uint8_t>((epoch.bytes[6] & 0x0f) | 0x40);  // version 4
  epoch.bytes[8] = static_cast<std::uint8_t>((epoch.bytes[8] & 0x3f) | 0x80);  // RFC 9562 variant
  return epoch;
}

std::optional<Epoch> Epoch::parse(std::string_view text) {
  Epoch epoch;
  for (std::size_t i = 0; i < epoch.bytes.size(); ++i) {
    if (has_dash_before(i)) {
      if (!text.starts_with('-')) return std::nullopt;
      text.remove_prefix(1);
    }
    if (text.size() < 2) return std::nullopt;
    const auto high = hex_value(text[0]);
    const auto low = hex_value(text[1]);
    if (!high || !low) return std::nullopt;
    epoch.bytes[i] = static_cast<std::uint8_t>(*high << 4 | *low);
    text.remove_prefix(2);
  }
  if (!text.empty()) return std::nullopt;
  return epoch;
}

std::string Epoch::to_string() const {
  std::string text;
  text.reserve(36);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (has_dash_before(i)) text += '-';
    text += kHexDigits[bytes[i] >> 4];
    text += kHexDigits[bytes[i] & 0x0f];
  }
  return text;
}

std::string_view to_string(ErrorClass error_class) {
  switch (error_class) {
    case ErrorClass::kCapacity:
      return "capacity";
    case ErrorClass::kTransient:
      return "transient";
    case ErrorClass::kPermanent:
      return "permanent";
    case ErrorClass::kTargetLost:
      return "target lost";
  }
  return "unknown";
}

std::string_view to_string(RowState state) {
  switch (state) {
    case RowState::kPending:
      return "pending";
    case RowState::kDone:
      return "done";
    case RowState::kError:
      return "error";
  }
  return "unknown";
}

std::string_view to_string(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kOpened:
      return "opened";
    case GateOutcome::kWithdrawn:
      return "withdrawn";
    case GateOutcome::kFailed:
      return "failed";
    case GateOutcome::kTimedOut:
      return "timed out";
    case GateOutcome::kCancelled:
      return "cancelled";
    case GateOutcome::kShuttingDown:
      return "shutting down";
  }
  return "unknown";
}

std::string_view to_string(GateRefusal refusal) {
  switch (refusal) {
    case GateRefusal::kOtherEpoch:
      return "the revision is of another epoch";
    case GateRefusal::kFutureRevision:
      return "the revision has not been handed out yet";
    case GateRefusal::kTooMany:
      return "too many gates are open";
  }
  return "unknown";
}

}  // namespace mapgate::reconciler
