// SPDX-License-Identifier: Apache-2.0
#include "agent/maps/src/inner_maps.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include <bpf/bpf.h>

#include <mapgate/maps/lpm.h>

#include "agent/maps/src/map_scan.h"

namespace mapgate::maps {

// One byte: an entry has two at least.
const RowValue InnerMaps::kOther{std::array{std::byte{0xff}}};

InnerMaps::InnerMaps(MapInfo description, MapCalls& calls,
                     std::function<reconciler::TimePoint()> now, reconciler::Duration call_limit)
    : description_(std::move(description)),
      calls_(calls),
      now_(std::move(now)),
      call_limit_(call_limit) {}

std::string InnerMaps::unsuitable(const MapInfo& description) {
  switch (description.type) {
    case BPF_MAP_TYPE_HASH:
    case BPF_MAP_TYPE_LPM_TRIE:
    case BPF_MAP_TYPE_ARRAY:
      break;
    default:
      return "inner maps of type " + describe_type(description.type) + " are not supported";
  }
  if (description.key_size == 0 || description.value_size == 0 || description.max_entries == 0)
    return "its inner maps need a key size, a value size and a number of entries";
  return {};
}

int InnerMaps::fill(const Map& map, std::span<const std::byte> value) {
  const std::size_t count = value.size() / (description_.key_size + description_.value_size);
  if (count == 0) return 0;
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  for_each_inner_entry(description_, value, [&](auto key, auto element) {
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), element.begin(), element.end());
  });
  auto done = static_cast<std::uint32_t>(count);
  if (calls_.update_batch(map.fd(), keys.data(), values.data(), done) == 0 && done == count)
    return 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int error = calls_.update(map.fd(), &keys[i * description_.key_size],
                                    &values[i * description_.value_size]);
    if (error != 0) return error;
  }
  return 0;
}

std::expected<Map, MapError> InnerMaps::make(std::span<const std::byte> value) {
  auto map = Map::create(description_);
  if (!map) return map;
  if (const int error = fill(*map, value); error != 0)
    return std::unexpected(
        MapError{"fill inner map", description_.name, error, describe_errno(error)});
  // A map of a kind that cannot be frozen serves as well.
  (void)bpf_map_freeze(map->fd());
  return map;
}

std::expected<RowValue, int> InnerMaps::read(std::uint32_t id) {
  const auto map = Map::open_id(id);
  if (!map) return std::unexpected(map.error().code);
  const MapInfo& info = map->info();
  if (!are_made_alike(info, description_)) return kOther;
  std::vector<InnerEntry> entries;
  const std::size_t most = RowValue::kMaxSize / (info.key_size + info.value_size);
  MapScan scan(*map, calls_, now_, call_limit_, info.value_size);
  scan.begin();
  for (bool end = false; !end;) {
    const auto next = scan.next(false, most, [&](auto key, auto value) {
      entries.push_back({{key.begin(), key.end()}, {value.begin(), value.end()}});
      if (info.type == BPF_MAP_TYPE_LPM_TRIE) (void)canonicalize_lpm_key(entries.back().first);
    });
    if (!next) return std::unexpected(next.error());
    end = *next;
  }
  return inner_map_value(description_, std::move(entries)).value_or(kOther);
}

std::expected<RowValue, std::string> read_inner_map(std::uint32_t id, const MapInfo& inner,
                                                    MapCalls& calls) {
  constexpr auto kCallLimit = std::chrono::milliseconds(1);
  InnerMaps maps(
      inner, calls, [] { return std::chrono::steady_clock::now(); }, kCallLimit);
  auto held = maps.read(id);
  if (!held) return std::unexpected(describe_errno(held.error()));
  if (*held == InnerMaps::kOther)
    return std::unexpected("is made another way, or holds more than an entry can say");
  return std::move(*held);
}

}  // namespace mapgate::maps
