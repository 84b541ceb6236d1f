// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <mapgate/maps/row.h>
#include <mapgate/reconciler/operations.h>

namespace mapgate::maps {

// What FaultInjectingOperations does; each part may be left out. For tests.
struct Faults {
  using Operation = reconciler::Operation<RowKey, RowValue>;

  // Passes before every batch that has a write, by `sleep`.
  reconciler::Duration write_delay{};
  std::function<void(reconciler::Duration)> sleep;
  // An error: the operation fails with it, and does not reach the target.
  std::function<std::optional<reconciler::OperationError>(const Operation&)> error;
};

// Operations that are slower and fail more often than those they wrap, which must outlive them.
class FaultInjectingOperations final : public reconciler::Operations<RowKey, RowValue> {
 public:
  FaultInjectingOperations(reconciler::Operations<RowKey, RowValue>& inner, Faults faults);

  void apply(std::span<const Faults::Operation> batch,
             std::span<reconciler::OperationResult> results) override;
  [[nodiscard]] std::size_t batch_limit() const override { return inner_.batch_limit(); }
  [[nodiscard]] std::expected<void, reconciler::OperationError> scan_begin() override;
  [[nodiscard]] std::expected<bool, reconciler::OperationError> scan_next(
      std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries) override;
  [[nodiscard]] bool is_absence(const RowKey& key, const RowValue& value) const override {
    return inner_.is_absence(key, value);
  }

 private:
  reconciler::Operations<RowKey, RowValue>& inner_;
  Faults faults_;
};

}  // namespace mapgate::maps
