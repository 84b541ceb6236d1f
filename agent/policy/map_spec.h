// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <linux/bpf.h>

#include "agent/policy/document.h"
#include "agent/policy/layout.h"

namespace mapgate::policy {

// A map that is made when its pin does not exist.
struct MapCreation {
  bpf_map_type type = BPF_MAP_TYPE_HASH;
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  std::uint32_t max_entries = 0;
  std::uint32_t flags = 0;  // BPF_F_*

  friend bool operator==(const MapCreation&, const MapCreation&) = default;
};

// How the inner maps of a map of maps are made.
struct InnerMapSpec {
  MapCreation creation;
  std::optional<Layout> key_layout;
  std::optional<Layout> value_layout;

  friend bool operator==(const InnerMapSpec&, const InnerMapSpec&) = default;
};

struct MapHint {
  std::string path;  // "key.addr", "value"
  LayoutHint hint = LayoutHint::kHex;
  Location location;

  friend bool operator==(const MapHint&, const MapHint&) = default;
};

// A map of anybody's that the spec declares the content of. What its entries mean can be told only
// once the map is there to say what it holds, so they stay as they were read.
struct MapSpec {
  std::string name;
  std::string pin;
  bool prune = false;
  DocumentNode entries;                               // a list of {key, value}, or null
  std::optional<std::filesystem::path> entries_from;  // relative to the working folder
  std::optional<MapCreation> create;
  std::optional<Layout> key_layout;  // instead of the map's BTF
  std::optional<Layout> value_layout;
  std::optional<InnerMapSpec> inner;
  std::vector<MapHint> hints;
  std::string pointer;  // JSON pointer to the map in its spec
  Location location;

  friend bool operator==(const MapSpec&, const MapSpec&) = default;
};

inline constexpr std::size_t kMaxDeclaredMaps = 256;
// Of a line of entriesFrom, without its end.
inline constexpr std::size_t kMaxEntryLine = 64U << 10;

}  // namespace mapgate::policy
