// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/map_copy.h"

#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/datapath/datapath.h"

namespace mapgate::datapath {
namespace {

Error copy_error(const maps::MapInfo& map, int code, std::string text) {
  return {"copy map " + map.name, code, std::move(text)};
}

// Where the spec says its size, in brackets.
std::string size_field(std::string_view map) {
  if (map == kAddressesMap) return " (node.maps.addresses)";
  if (map == kPrefixesMap) return " (node.maps.prefixes)";
  if (map == kPortsMap) return " (node.maps.ports)";
  return {};
}

Result<maps::MapOperations> operations_on(int fd, maps::MapCalls& calls) {
  auto map = maps::Map::from_fd(fd);
  if (!map) return std::unexpected(Error{"copy a map", map.error().code, map.error().text()});
  const maps::MapInfo info = map->info();
  std::vector<maps::Map> maps;
  maps.push_back(std::move(*map));
  maps::MapOperations::Options options;
  options.now = [] { return reconciler::TimePoint(std::chrono::steady_clock::now()); };
  auto operations = maps::MapOperations::create(std::move(maps), calls, std::move(options));
  if (!operations)
    return std::unexpected(copy_error(info, operations.error().code, operations.error().text()));
  return std::move(*operations);
}

}  // namespace

MapCopy::MapCopy(std::unique_ptr<maps::KernelMapCalls> calls, maps::MapOperations from,
                 maps::MapOperations to)
    : calls_(std::move(calls)), from_(std::move(from)), to_(std::move(to)) {}

Result<MapCopy> MapCopy::create(int from, int to) {
  auto calls = std::make_unique<maps::KernelMapCalls>();
  auto source = operations_on(from, *calls);
  if (!source) return std::unexpected(source.error());
  auto target = operations_on(to, *calls);
  if (!target) return std::unexpected(target.error());
  MapCopy copy(std::move(calls), std::move(*source), std::move(*target));
  if (auto begun = copy.from_.scan_begin(); !begun)
    return std::unexpected(
        copy_error(copy.from_.status()[0].info, begun.error().code, begun.error().text));
  return copy;
}

Result<bool> MapCopy::next(std::size_t elements) {
  const auto failed = [&](const reconciler::OperationError& error) {
    return std::unexpected(copy_error(from_.status()[0].info, error.code, error.text));
  };
  std::vector<std::pair<maps::RowKey, maps::RowValue>> entries;
  const auto end = from_.scan_next(elements, entries);
  if (!end) return failed(end.error());
  read_ += entries.size();
  std::vector<reconciler::Operation<maps::RowKey, maps::RowValue>> batch;
  for (auto& [key, value] : entries) batch.push_back({std::move(key), std::move(value)});
  std::vector<reconciler::OperationResult> results(batch.size());
  if (!too_small_ && !batch.empty()) to_.apply(batch, results);
  for (const auto& result : results) {
    if (!result.error) continue;
    if (result.error->error_class != reconciler::ErrorClass::kCapacity)
      return failed(*result.error);
    too_small_ = true;  // read on, to say how many there are
  }
  if (*end && too_small_) {
    const maps::MapInfo info = to_.status()[0].info;
    return std::unexpected(
        copy_error(info, ENOSPC,
                   "it holds " + std::to_string(read_) + " entries, which do not fit into " +
                       std::to_string(info.max_entries) + size_field(info.name)));
  }
  return *end;
}

}  // namespace mapgate::datapath
