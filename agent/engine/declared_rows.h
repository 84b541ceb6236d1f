// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>

#include "agent/policy/map_spec.h"
#include "agent/policy/spec.h"
#include "agent/schema/btf_layout.h"

namespace mapgate::engine {

// What a declared map is to hold: keys and values as the kernel has them, one after the other
// without gaps, since there may be millions.
class DeclaredRows {
 public:
  DeclaredRows(std::uint32_t key_size, std::uint32_t value_size)
      : key_size_(key_size), row_size_(std::size_t{key_size} + value_size) {}

  [[nodiscard]] std::size_t size() const { return bytes_.size() / row_size_; }
  [[nodiscard]] std::span<const std::byte> key(std::size_t row) const {
    return std::span(bytes_).subspan(row * row_size_, key_size_);
  }
  [[nodiscard]] std::span<const std::byte> value(std::size_t row) const {
    return std::span(bytes_).subspan(row * row_size_ + key_size_, row_size_ - key_size_);
  }

  // Adds a row of zeros, valid until the next one. First the key, then the value.
  [[nodiscard]] std::span<std::byte> add() {
    bytes_.resize(bytes_.size() + row_size_);
    return std::span(bytes_).last(row_size_);
  }

  // Adds rows of the same sizes behind these.
  void append(DeclaredRows rows);

  // Rows with a key that an earlier one has, with that one before it; at most `max`. To be called
  // once all rows are there.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> index(std::size_t max);
  // Once indexed.
  [[nodiscard]] bool contains(std::span<const std::byte> key) const;

 private:
  // Of the row with this key, or of where it would be.
  [[nodiscard]] std::size_t slot_of(std::span<const std::byte> key) const;

  std::uint32_t key_size_;
  std::size_t row_size_;
  std::vector<std::byte> bytes_;
  std::vector<std::uint32_t> slots_;  // by hash: a row's number plus 1, or 0
};

// What the loader has to know of the map.
struct DeclaredTarget {
  maps::MapInfo info;
  schema::MapLayouts layouts;  // remember which members of unions were written
};

// What the spec itself says of a map: how it is made, or its layout. Nothing if it says neither.
[[nodiscard]] std::optional<DeclaredTarget> described_target(const policy::MapSpec& spec);

// The layouts that the spec asks for: the map's own or those it describes, with its hints. The
// faults name the spec's `file`.
[[nodiscard]] std::expected<schema::MapLayouts, std::vector<policy::SpecError>> choose_layouts(
    const std::string& file, const policy::MapSpec& spec, const maps::MapInfo& info,
    const schema::MapLayouts& of_map);

// Reads the entries of the spec, and those of the file that it names. All faults come back, up to
// kMaxSpecErrors of them, each with its place: a place in `file`, or a line. Takes as long as the
// entries are many, in bounded memory beyond the rows; when asked to stop, it fails.
[[nodiscard]] std::expected<DeclaredRows, std::vector<policy::SpecError>> load_declared_rows(
    const std::string& file, const policy::MapSpec& spec, DeclaredTarget& target,
    const std::stop_token& stop);

// The faults that can be found without the maps: in the entries of those that the spec describes
// itself, by a layout or by how they are made.
[[nodiscard]] std::vector<policy::SpecError> check_declared_rows(
    const std::string& file, const std::vector<policy::MapSpec>& specs);

}  // namespace mapgate::engine
