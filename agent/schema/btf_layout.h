// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>

#include "agent/policy/layout.h"

struct btf;

namespace mapgate::schema {

// What a map's own types say of its keys and values.
struct MapLayouts {
  policy::Layout key;
  policy::Layout value;

  friend bool operator==(const MapLayouts&, const MapLayouts&) = default;
};

// The layout of a type. Types that a document cannot hold (pointers, floats) become hex. The error
// is a reason for people.
[[nodiscard]] std::expected<policy::Layout, std::string> layout_of_type(const btf& types,
                                                                        std::uint32_t type_id);

// Of the types of a map's keys and values, 0: none. Hex for what has no type, or one of another
// size.
[[nodiscard]] MapLayouts layouts_of_types(const btf& types, std::uint32_t key_type,
                                          std::uint32_t key_size, std::uint32_t value_type,
                                          std::uint32_t value_size);

// By the BTF that the kernel has for the map behind `fd`; hex for what it has none for, or none
// that describes all of its bytes. Fails only if the kernel does not tell.
[[nodiscard]] std::expected<MapLayouts, std::string> layouts_of_map(int fd);

// `size` bytes of which nothing is known.
[[nodiscard]] policy::Layout hex_layout(std::uint32_t size);

}  // namespace mapgate::schema
