// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_operations.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "agent/maps/src/batch_size.h"
#include "agent/maps/src/inner_maps.h"
#include "agent/maps/src/target_map.h"

namespace mapgate::maps {

std::string MapOperations::unsuitable(const MapInfo& info, const MapInfo* inner) {
  switch (info.type) {
    case BPF_MAP_TYPE_HASH:
    case BPF_MAP_TYPE_LPM_TRIE:
    case BPF_MAP_TYPE_ARRAY:
    case BPF_MAP_TYPE_PERCPU_HASH:
    case BPF_MAP_TYPE_PERCPU_ARRAY:
      break;
    case BPF_MAP_TYPE_HASH_OF_MAPS:
    case BPF_MAP_TYPE_ARRAY_OF_MAPS:
      if (inner == nullptr) return "nothing says how its inner maps are made";
      if (std::string reason = InnerMaps::unsuitable(*inner); !reason.empty()) return reason;
      break;
    case BPF_MAP_TYPE_LRU_HASH:
    case BPF_MAP_TYPE_LRU_PERCPU_HASH:
      return "an " + describe_type(info.type) +
             " map evicts entries when it is full, instead of refusing new ones: it cannot hold "
             "desired state";
    default:
      return "maps of " + describe_type(info.type) + " are not supported";
  }
  // A scan must be able to show more than one CPU's.
  if (info.value_size > (is_per_cpu(info.type) ? RowValue::kMaxSize / 2 : RowValue::kMaxSize))
    return "values of " + std::to_string(info.value_size) + " bytes are not supported";
  return {};
}

std::uint64_t MapStatus::room() const {
  return info.max_entries - std::min<std::uint64_t>(entries, info.max_entries);
}

double MapStatus::fill() const {
  return info.max_entries == 0
             ? 0.0
             : static_cast<double>(entries) / static_cast<double>(info.max_entries);
}

bool MapStatus::can_fill_up() const {
  return !has_indices(info.type);
}

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
    const auto index = static_cast<MapIndex>(targets.size());
    const auto inner = options.inner_maps.find(index);
    const MapInfo* described = inner == options.inner_maps.end() ? nullptr : &inner->second;
    if (std::string reason = unsuitable(map.info(), described); !reason.empty())
      return std::unexpected(MapError{"use map", map.info().name, EOPNOTSUPP, std::move(reason)});
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

void MapOperations::replace(MapIndex index, Map map) {
  targets_.at(index)->replace(std::move(map));
}

std::vector<MapStatus> MapOperations::status() const {
  std::vector<MapStatus> all;
  for (const auto& target : targets_) all.push_back(target->status());
  return all;
}

}  // namespace mapgate::maps
