// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/inner_map.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <mapgate/maps/lpm.h>
#include <mapgate/maps/map_error.h>

namespace mapgate::maps {
namespace {

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool key_less(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::lexicographical_compare(a, b);
}

std::string key_problem(const MapInfo& inner, std::span<const std::byte> key) {
  if (inner.type == BPF_MAP_TYPE_LPM_TRIE && !is_canonical_lpm_key(key))
    return "a key of the inner map has bits set past its prefix, or too long a prefix";
  if (!is_array(inner.type)) return {};
  std::uint32_t index;
  std::memcpy(&index, key.data(), sizeof index);
  if (index < inner.max_entries) return {};
  return "index " + std::to_string(index) + " is outside of the inner map (" +
         std::to_string(inner.max_entries) + " entries)";
}

std::string too_large(std::size_t bytes) {
  return "the inner map has " + std::to_string(bytes) + " bytes of entries, more than " +
         std::to_string(RowValue::kMaxSize);
}

}  // namespace

std::expected<RowValue, std::string> inner_map_value(const MapInfo& inner,
                                                     std::vector<InnerEntry> entries) {
  std::vector<std::byte> bytes;
  std::ranges::sort(entries,
                    [](const auto& a, const auto& b) { return key_less(a.first, b.first); });
  for (const auto& [key, value] : entries) {
    if (key.size() != inner.key_size || value.size() != inner.value_size)
      return std::unexpected("an entry of the inner map has " + std::to_string(key.size()) +
                             " and " + std::to_string(value.size()) +
                             " bytes of key and value, not " + std::to_string(inner.key_size) +
                             " and " + std::to_string(inner.value_size));
    if (is_array(inner.type) && is_zero(value)) continue;
    bytes.insert(bytes.end(), key.begin(), key.end());
    bytes.insert(bytes.end(), value.begin(), value.end());
  }
  if (std::string problem = inner_map_problem(inner, bytes); !problem.empty())
    return std::unexpected(std::move(problem));
  return RowValue(bytes);
}

std::string inner_map_problem(const MapInfo& inner, std::span<const std::byte> value) {
  const std::size_t entry_size = inner.key_size + inner.value_size;
  if (value.size() > RowValue::kMaxSize) return too_large(value.size());
  if (value.size() % entry_size != 0)
    return std::to_string(value.size()) + " bytes are no entries of " + std::to_string(entry_size);
  if (value.size() / entry_size > inner.max_entries)
    return "the inner map has room for " + std::to_string(inner.max_entries) +
           " entries, not for " + std::to_string(value.size() / entry_size);
  std::string problem;
  std::span<const std::byte> previous;
  for_each_inner_entry(inner, value, [&](auto key, auto element) {
    if (!problem.empty()) return;
    problem = key_problem(inner, key);
    if (!previous.empty() && !key_less(previous, key))
      problem = "keys of the inner map are not in order, or given twice";
    if (is_array(inner.type) && is_zero(element)) problem = "an array's zeros are to be left out";
    previous = key;
  });
  return problem;
}

void for_each_inner_entry(
    const MapInfo& inner, std::span<const std::byte> value,
    const std::function<void(std::span<const std::byte>, std::span<const std::byte>)>& visit) {
  const std::size_t entry_size = inner.key_size + inner.value_size;
  for (; value.size() >= entry_size; value = value.subspan(entry_size))
    visit(value.first(inner.key_size), value.subspan(inner.key_size, inner.value_size));
}

}  // namespace mapgate::maps
