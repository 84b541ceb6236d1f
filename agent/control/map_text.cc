// SPDX-License-Identifier: Apache-2.0
#include "agent/control/map_text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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
    result.push_back({{"key", schema::decode(map.layouts().key, key.bytes())},
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
    const schema::MapLayouts& layouts = entry.map->layouts();
    rows.push_back({{"key", schema::decode(layouts.key, key.bytes())},
                    {"value", value ? schema::decode(layouts.value, value->bytes()) : Json()},
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
