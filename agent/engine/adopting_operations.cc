// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/adopting_operations.h"

namespace mapgate::engine {
namespace {

constexpr std::size_t kScanSlice = 4096;

}  // namespace

std::expected<void, reconciler::OperationError> AdoptingOperations::take_snapshot() {
  snapshot_.clear();
  if (auto begun = inner_.scan_begin(); !begun) return begun;
  std::vector<std::pair<maps::RowKey, maps::RowValue>> entries;
  for (bool at_end = false; !at_end;) {
    entries.clear();
    const auto next = inner_.scan_next(kScanSlice, entries);
    if (!next) return std::unexpected(next.error());
    at_end = *next;
    for (auto& [key, value] : entries) snapshot_.insert_or_assign(std::move(key), std::move(value));
  }
  return {};
}

void AdoptingOperations::apply(std::span<const Operation> batch,
                               std::span<reconciler::OperationResult> results) {
  if (snapshot_.empty()) return apply_all(batch, results);
  std::vector<Operation> needed;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (adopt(batch[i])) {
      results[i] = {.error = std::nullopt, .target = batch[i].key.map(), .freed = false};
      ++counters_.adopted;
    } else {
      needed.push_back(batch[i]);
      places.push_back(i);
    }
  }
  std::vector<reconciler::OperationResult> needed_results(needed.size());
  if (!needed.empty()) apply_all(needed, needed_results);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(needed_results[i]);
}

void AdoptingOperations::apply_all(std::span<const Operation> batch,
                                   std::span<reconciler::OperationResult> results) {
  inner_.apply(batch, results);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (results[i].error) {
      ++counters_.failed;
    } else {
      ++(batch[i].value ? counters_.written : counters_.deleted);
    }
  }
}

bool AdoptingOperations::adopt(const Operation& operation) {
  const auto found = snapshot_.find(operation.key);
  if (found == snapshot_.end()) return false;
  const bool right = operation.value && *operation.value == found->second;
  snapshot_.erase(found);
  return right;
}

}  // namespace mapgate::engine
