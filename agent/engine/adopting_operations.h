// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include "agent/engine/types.h"

namespace mapgate::engine {

// Operations for a start on maps that an earlier process filled: what a look at them has shown to
// be right is not written again. The look is taken once, before the first step; a resync later
// compares everything anyway. Not thread-safe.
class AdoptingOperations final : public Operations {
 public:
  using Snapshot = boost::unordered_flat_map<maps::RowKey, maps::RowValue, maps::RowKeyHash>;

  explicit AdoptingOperations(Operations& inner) : inner_(inner) {}

  // Reads everything, until the end.
  [[nodiscard]] std::expected<void, reconciler::OperationError> take_snapshot();
  // What the target held at that time, less what was operated on since.
  [[nodiscard]] const Snapshot& snapshot() const { return snapshot_; }
  void drop_snapshot() { snapshot_ = {}; }

  struct Counters {
    std::uint64_t adopted = 0;  // writes that were not needed
    std::uint64_t written = 0;
    std::uint64_t deleted = 0;
    std::uint64_t failed = 0;  // writes and deletes
  };
  [[nodiscard]] const Counters& counters() const { return counters_; }

  void apply(std::span<const Operation> batch,
             std::span<reconciler::OperationResult> results) override;
  [[nodiscard]] std::expected<void, reconciler::OperationError> scan_begin() override {
    return inner_.scan_begin();
  }
  [[nodiscard]] std::expected<bool, reconciler::OperationError> scan_next(
      std::size_t max, std::vector<std::pair<maps::RowKey, maps::RowValue>>& entries) override {
    return inner_.scan_next(max, entries);
  }
  [[nodiscard]] std::size_t batch_limit() const override { return inner_.batch_limit(); }
  [[nodiscard]] bool is_absence(const maps::RowKey& key,
                                const maps::RowValue& value) const override {
    return inner_.is_absence(key, value);
  }

 private:
  void apply_all(std::span<const Operation> batch, std::span<reconciler::OperationResult> results);
  // Whether the operation asks for what is there.
  [[nodiscard]] bool adopt(const Operation& operation);

  Operations& inner_;
  Snapshot snapshot_;
  Counters counters_;
};

}  // namespace mapgate::engine
