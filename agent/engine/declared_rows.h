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
#include <mapgate/reconciler/hash_index.h>

#include "agent/policy/map_spec.h"
#include "agent/policy/spec.h"
#include "agent/schema/btf_layout.h"

namespace mapgate::engine {

// What a declared map is to hold: keys and values as the kernel has them, one after the other
// without gaps, since there may be millions.
class DeclaredRows {
 public:
  // No value size: each row has one of its own.
  DeclaredRows(std::uint32_t key_size, std::optional<std::uint32_t> value_size)
      : key_size_(key_size), row_size_(value_size ? std::size_t{key_size} + *value_size : 0) {}

  [[nodiscard]] std::size_t size() const {
    return row_size_ == 0 ? ends_.size() : bytes_.size() / row_size_;
  }
  [[nodiscard]] std::span<const std::byte> key(std::size_t row) const {
    return std::span(bytes_).subspan(begin_of(row), key_size_);
  }
  [[nodiscard]] std::span<const std::byte> value(std::size_t row) const {
    const std::size_t begin = begin_of(row) + key_size_;
    return std::span(bytes_).subspan(begin, end_of(row) - begin);
  }

  // Adds a row of zeros, valid until the next one. First the key, then the value, of `value_size`
  // bytes unless all have the same.
  [[nodiscard]] std::span<std::byte> add(std::size_t value_size = 0) {
    const std::size_t size = row_size_ == 0 ? key_size_ + value_size : row_size_;
    bytes_.resize(bytes_.size() + size);
    if (row_size_ == 0) ends_.push_back(bytes_.size());
    return std::span(bytes_).last(size);
  }

  // Adds rows of the same sizes behind these.
  void append(DeclaredRows rows);

  // Rows with a key that an earlier one has, with that one before it; at most `max`. To be called
  // once all rows are there.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> index(std::size_t max);
  // Once indexed.
  [[nodiscard]] bool contains(std::span<const std::byte> key) const;

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t row) const {
    if (row_size_ != 0) return row * row_size_;
    return row == 0 ? 0 : ends_[row - 1];
  }
  [[nodiscard]] std::size_t end_of(std::size_t row) const {
    return row_size_ != 0 ? (row + 1) * row_size_ : ends_[row];
  }
  // None if there is no such row.
  [[nodiscard]] reconciler::HashIndex::Number find(std::span<const std::byte> key,
                                                   std::uint32_t hash) const;

  std::uint32_t key_size_;
  std::size_t row_size_;  // 0: see ends_
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;  // of rows of different sizes
  reconciler::HashIndex index_;    // of rows
};

// How the inner maps of a map of maps are made, and what they hold.
struct InnerTarget {
  maps::MapInfo info;
  schema::MapLayouts layouts;
};
// What the spec says of them; it must have them.
[[nodiscard]] InnerTarget described_inner(const policy::MapSpec& spec);

// What the loader has to know of the map.
struct DeclaredTarget {
  maps::MapInfo info;
  // As those of `inner`: remember which members of unions were written.
  schema::MapLayouts layouts;
  // Of a map of maps. What the map itself shows of them, if it holds any; after choose_layouts()
  // what the spec makes of that.
  std::optional<InnerTarget> inner = std::nullopt;
};

// What the spec itself says of a map: how it is made, or its layout. Nothing if it says neither.
[[nodiscard]] std::optional<DeclaredTarget> described_target(const policy::MapSpec& spec);

// Puts the layouts that the spec asks for into `target`, which has the map's own: those that it
// describes, and hints. The faults name the spec's `file`.
[[nodiscard]] std::expected<void, std::vector<policy::SpecError>> choose_layouts(
    const std::string& file, const policy::MapSpec& spec, DeclaredTarget& target);

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
