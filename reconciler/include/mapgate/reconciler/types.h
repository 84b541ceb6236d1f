// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mapgate::reconciler {

// Revisions count the committed changes of one table in one epoch: 1, 2, 3, … never reused.
using Revision = std::uint64_t;

// The library has no clock of its own: whoever calls passes the time.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

// A random UUID (RFC 9562, version 4) per start: revisions of different epochs do not compare.
struct Epoch {
  std::array<std::uint8_t, 16> bytes{};

  // `high` and `low` are 128 random bits.
  [[nodiscard]] static Epoch from_random(std::uint64_t high, std::uint64_t low);
  [[nodiscard]] static std::optional<Epoch> parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// What an error means for the row, see Operations.
enum class ErrorClass : std::uint8_t {
  kCapacity,    // the target is full: parked until a delete frees room there
  kTransient,   // retried with exponential backoff and jitter
  kPermanent,   // not retried until the row changes, or the target is said to have changed
  kTargetLost,  // retried like kTransient, and the target is compared as a whole once it is back
};
[[nodiscard]] std::string_view to_string(ErrorClass error_class);

enum class RowState : std::uint8_t {
  kPending,  // not in the target yet, no attempt at its newest state has failed
  kDone,     // the target holds the newest state
  kError,    // the last attempt failed; see the error
};
[[nodiscard]] std::string_view to_string(RowState state);

struct RowError {
  ErrorClass error_class = ErrorClass::kTransient;
  int code = 0;  // errno, positive
  std::string text;
  std::uint32_t attempts = 0;           // failed attempts since the row was last realised
  std::optional<TimePoint> next_retry;  // none: waits for a change (permanent)
};

struct RowStatus {
  RowState state = RowState::kDone;
  bool erased = false;  // the row's newest state is "absent"
  TimePoint since{};    // when it got into this state
  // The smallest of the row's revisions that is not realised.
  std::optional<Revision> first_unreconciled;
  std::optional<RowError> error;
};

}  // namespace mapgate::reconciler
