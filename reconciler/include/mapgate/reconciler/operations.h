// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler {

// A part of the target that can be full on its own: one BPF map, say. Small and dense.
using TargetId = std::uint16_t;

// One thing to do: write `value` under `key`, or, without a value, make sure that `key` is absent.
template <typename Key, typename Value>
struct Operation {
  Key key;
  std::optional<Value> value;
  // Whether the target holds something under `key` as far as is known: by the last write, delete or
  // scan of it. Others may have changed that.
  bool held = false;
};

struct OperationError {
  ErrorClass error_class = ErrorClass::kTransient;
  int code = 0;  // errno, positive
  std::string text;
};

struct OperationResult {
  std::optional<OperationError> error;  // none: the target holds what was asked
  TargetId target = 0;                  // where the row lives
  // A delete that really removed an element: room for one parked row of the same target.
  bool freed = false;
};

// The target, as the reconciler sees it. Called from the driver's thread only, never with the table
// locked. A missing key on delete is success.
template <typename Key, typename Value>
class Operations {
 public:
  virtual ~Operations() = default;

  // Carries out `batch` and fills one result per operation. Within one target, writes come before
  // deletes, except when they would overflow it: then deletes come first. Keys in a batch are
  // distinct.
  virtual void apply(std::span<const Operation<Key, Value>> batch,
                     std::span<OperationResult> results) = 0;
  // How many operations of a kind (new, or tried again) the next batch should have at most, at
  // least 1: a row that somebody waits for waits for the batch before it. Asked before each batch.
  [[nodiscard]] virtual std::size_t batch_limit() const {
    return std::numeric_limits<std::size_t>::max();
  }

  // Starts reading the whole target from the beginning.
  [[nodiscard]] virtual std::expected<void, OperationError> scan_begin() = 0;
  // Appends up to about `max` of the target's entries; true when that was the end. An entry may be
  // seen more than once, and one that others add or remove meanwhile may be missed.
  [[nodiscard]] virtual std::expected<bool, OperationError> scan_next(
      std::size_t max, std::vector<std::pair<Key, Value>>& entries) = 0;
  // Whether an entry that a scan shows is just what deleting `key` leaves, where the target has no
  // way to hold nothing. Then it is right for a row that is erased, or is none.
  [[nodiscard]] virtual bool is_absence(const Key& /*key*/, const Value& /*value*/) const {
    return false;
  }
};

}  // namespace mapgate::reconciler
