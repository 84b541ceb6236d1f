// SPDX-License-Identifier: Apache-2.0
#include "agent/control/map_text.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/maps/inner_map.h>
#include <mapgate/maps/map_error.h>

#include "agent/schema/codec.h"

namespace mapgate::control {
namespace {

using Json = nlohmann::ordered_json;
using engine::DeclaredMap;
using engine::DeclaredMaps;

constexpr std::size_t kMaxErrors = 20;
constexpr std::size_t kScanSlice = 4096;       // places of a table looked at with it locked
constexpr std::size_t kMaxPlaces = 64 * 1024;  // and in one request

Json describe_faults(const std::vector<policy::SpecError>& faults) {
  Json result = Json::array();
  for (const policy::SpecError& fault : faults) result.push_back(fault.to_string());
  return result;
}

Json describe_errors(const DeclaredMap& map) {
  Json result = Json::array();
  for (const auto& [key, status] : map.loop().reconciler().first_errors(kMaxErrors))
    result.push_back({{"key", decode_key(map.declared_target(), key.bytes())},
                      {"error", status.error ? status.error->text : ""}});
  return result;
}

// How full it is, and what was done to it.
Json describe_counts(const maps::MapStatus& map) {
  return {{"entries", map.entries}, {"max_entries", map.info.max_entries},
          {"fill", map.fill()},     {"nearly_full", map.is_nearly_full()},
          {"written", map.written}, {"removed", map.removed}};
}

void describe_open(const DeclaredMap& map, Json& entry) {
  const maps::MapStatus status = map.status();
  const reconciler::Progress progress = map.loop().reconciler().progress();
  entry["type"] = maps::describe_type(status.info.type);
  entry["id"] = status.info.id;
  entry.update(describe_counts(status));
  entry["rows"] = {{"pending", progress.pending},
                   {"done", progress.done},
                   {"error", progress.errors},
                   {"parked", progress.parked}};
  entry["resync"] = {{"completed", progress.resync.completed},
                     {"adopted", progress.resync.adopted},
                     {"repaired", progress.resync.repaired},
                     {"removed", progress.resync.removed},
                     {"foreign", progress.resync.unknown},
                     {"error", progress.resync.error ? Json(progress.resync.error->text) : Json()}};
  entry["errors"] = describe_errors(map);
}

}  // namespace

Json decode_key(const engine::DeclaredTarget& target, std::span<const std::byte> key) {
  return schema::decode(target.layouts.key, key);
}

Json decode_value(const engine::DeclaredTarget& target, std::span<const std::byte> value) {
  if (!target.inner) return schema::decode(target.layouts.value, value);
  Json entries = Json::array();
  const engine::InnerTarget& inner = *target.inner;
  maps::for_each_inner_entry(inner.info, value, [&](auto key, auto element) {
    entries.push_back({{"key", schema::decode(inner.layouts.key, key)},
                       {"value", schema::decode(inner.layouts.value, element)}});
  });
  return entries;
}

Json decode_element(maps::MapCalls& calls, const engine::DeclaredTarget& target,
                    std::span<const std::byte> value) {
  if (!target.inner) return decode_value(target, value);
  std::uint32_t id = 0;
  std::memcpy(&id, value.data(), std::min(value.size(), sizeof id));
  const auto held = maps::read_inner_map(id, target.inner->info, calls);
  if (held) return decode_value(target, held->bytes());
  return {{"map_id", id}, {"error", held.error()}};
}

Json describe_maps(std::span<const maps::MapStatus> maps) {
  Json result = Json::array();
  for (const maps::MapStatus& map : maps) {
    Json& described = result.emplace_back(Json{{"name", map.info.name}});
    described.update(describe_counts(map));
  }
  return result;
}

std::optional<std::size_t> list_rows(const engine::Reconciler& reconciler, std::size_t from,
                                     std::size_t limit, const Json& rows,
                                     const engine::Reconciler::RowVisitor& visit) {
  std::optional<std::size_t> next = from;
  while (next && rows.size() < limit && *next - from < kMaxPlaces)
    next = reconciler.list(*next, std::min(limit - rows.size(), kScanSlice), visit);
  return next;
}

Json describe_declared(const DeclaredMaps& maps) {
  Json result = Json::array();
  for (const auto& entry : maps.entries()) {
    Json described = {{"name", entry->spec->name},
                      {"pin", entry->spec->pin},
                      {"prune", entry->spec->prune},
                      {"state", engine::to_string(entry->state())},
                      {"error", entry->error.empty() ? Json() : Json(entry->error)},
                      {"faults", describe_faults(entry->faults)}};
    if (entry->map) describe_open(*entry->map, described);
    result.push_back(std::move(described));
  }
  return result;
}

Json describe_declared_rows(const DeclaredMaps::Entry& entry, std::string_view state,
                            std::size_t from, std::size_t limit) {
  Json rows = Json::array();
  const auto visit = [&](const maps::RowKey& key, const std::optional<maps::RowValue>& value,
                         reconciler::Revision, const reconciler::RowStatus& status) {
    if (state != reconciler::to_string(status.state)) return;
    const engine::DeclaredTarget& target = entry.map->declared_target();
    rows.push_back({{"key", decode_key(target, key.bytes())},
                    {"value", value ? decode_value(target, value->bytes()) : Json()},
                    {"state", reconciler::to_string(status.state)},
                    {"erased", status.erased},
                    {"error", status.error ? Json(status.error->text) : Json()}});
  };
  std::optional<std::size_t> next;
  if (entry.map) next = list_rows(entry.map->loop().reconciler(), from, limit, rows, visit);
  return {{"map", entry.spec->name},
          {"pin", entry.spec->pin},
          {"next", next ? Json(*next) : Json()},
          {"entries", std::move(rows)}};
}

}  // namespace mapgate::control
