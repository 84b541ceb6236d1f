// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/fault_injection.h>

#include <algorithm>
#include <cstddef>

namespace mapgate::maps {

FaultInjectingOperations::FaultInjectingOperations(reconciler::Operations<RowKey, RowValue>& inner,
                                                   Faults faults)
    : inner_(inner), faults_(std::move(faults)) {}

void FaultInjectingOperations::apply(std::span<const Faults::Operation> batch,
                                     std::span<reconciler::OperationResult> results) {
  const bool writes =
      std::ranges::any_of(batch, [](const auto& operation) { return operation.value.has_value(); });
  if (writes && faults_.sleep && faults_.write_delay > reconciler::Duration::zero())
    faults_.sleep(faults_.write_delay);
  if (!faults_.error) return inner_.apply(batch, results);

  std::vector<Faults::Operation> passed;
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto error = faults_.error(batch[i]);
    if (error) {
      results[i] = {.error = std::move(error), .target = batch[i].key.map(), .freed = false};
    } else {
      passed.push_back(batch[i]);
      positions.push_back(i);
    }
  }
  std::vector<reconciler::OperationResult> passed_results(passed.size());
  inner_.apply(passed, passed_results);
  for (std::size_t i = 0; i < passed.size(); ++i)
    results[positions[i]] = std::move(passed_results[i]);
}

std::expected<void, reconciler::OperationError> FaultInjectingOperations::scan_begin() {
  return inner_.scan_begin();
}

std::expected<bool, reconciler::OperationError> FaultInjectingOperations::scan_next(
    std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries) {
  return inner_.scan_next(max, entries);
}

}  // namespace mapgate::maps
