// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_operations.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "agent/maps/src/batch_size.h"
#include "agent/maps/src/target_map.h"

namespace mapgate::maps {
namespace {

// Why desired state cannot live in such a map; empty if it can.
std::string unsuitable(const MapInfo& info) {
  switch (info.type) {
    case BPF_MAP_TYPE_HASH:
    case BPF_MAP_TYPE_LPM_TRIE:
    case BPF_MAP_TYPE_ARRAY:
      break;
    case BPF_MAP_TYPE_LRU_HASH:
    case BPF_MAP_TYPE_LRU_PERCPU_HASH:
      return "an " + describe_type(info.type) +
             " map evicts entries when it is full, instead of refusing new ones: it cannot hold "
             "desired state";
    default:
      return "maps of " + describe_type(info.type) + " are not supported";
  }
  if (info.value_size > RowValue::kMaxSize)
    return "values of " + std::to_string(info.value_size) + " bytes are not supported";
  return {};
}

}  // namespace

MapOperations::MapOperations(std::vector<std::unique_ptr<TargetMap>> targets, Options options)
    : options_(std::move(options)),
      batch_size_(std::make_unique<BatchSize>(options_.call_limit, 1)),
      targets_(std::move(targets)) {}
MapOperations::MapOperations(MapOperations&&) noexcept = default;
MapOperations& MapOperations::operator=(MapOperations&&) noexcept = default;
MapOperations::~MapOperations() = default;

std::expected<MapOperations, MapError> MapOperations::create(std::vector<Map> maps, MapCalls& calls,
                                                             Options options) {
  std::vector<std::unique_ptr<TargetMap>> targets;
  for (Map& map : maps) {
    if (std::string reason = unsuitable(map.info()); !reason.empty())
      return std::unexpected(MapError{"use map", map.info().name, EOPNOTSUPP, std::move(reason)});
    const auto index = static_cast<MapIndex>(targets.size());
    targets.push_back(std::make_unique<TargetMap>(index, std::move(map), calls, options));
  }
  return MapOperations(std::move(targets), std::move(options));
}

void MapOperations::apply(std::span<const reconciler::Operation<RowKey, RowValue>> batch,
                          std::span<reconciler::OperationResult> results) {
  const auto start = options_.now();
  const TargetMap::Round round{batch, results};
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const MapIndex index = batch[i].key.map();
    results[i] = {.error = std::nullopt, .target = index, .freed = false};
    if (index < targets_.size())
      targets_[index]->queue(i, round);
    else
      results[i].error = {reconciler::ErrorClass::kPermanent, EINVAL,
                          "there is no map with index " + std::to_string(index)};
  }
  for (const auto& target : targets_)
    if (target->has_work()) target->run(round);
  batch_size_->record(batch.size(), options_.now() - start);
}

std::size_t MapOperations::batch_limit() const {
  return batch_size_->get();
}

bool MapOperations::is_absence(const RowKey& key, const RowValue& value) const {
  return key.map() < targets_.size() && targets_[key.map()]->is_absence(value);
}

std::expected<void, reconciler::OperationError> MapOperations::scan_begin() {
  scanned_ = 0;
  for (const auto& target : targets_)
    if (auto begun = target->scan_begin(); !begun) return begun;
  return {};
}

std::expected<bool, reconciler::OperationError> MapOperations::scan_next(
    std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries) {
  if (scanned_ < targets_.size()) {
    const auto end = targets_[scanned_]->scan_next(max, entries);
    if (!end) return end;
    if (*end) ++scanned_;
  }
  return scanned_ == targets_.size();
}

std::vector<MapStatus> MapOperations::status() const {
  std::vector<MapStatus> all;
  for (const auto& target : targets_) all.push_back(target->status());
  return all;
}

}  // namespace mapgate::maps
