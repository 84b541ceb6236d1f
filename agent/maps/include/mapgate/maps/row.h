// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace mapgate::maps {

// Which map a row belongs to: its index in MapOperations.
using MapIndex = std::uint16_t;

// A short byte string that stores up to kInline bytes in place and longer ones on the heap. More
// than kMaxSize bytes are a mistake of the caller: std::length_error.
template <std::size_t kInline>
class ShortBytes {
 public:
  static constexpr std::size_t kMaxSize = 65535;

  ShortBytes() = default;
  explicit ShortBytes(std::span<const std::byte> bytes) { assign(bytes); }
  ShortBytes(const ShortBytes& other) { copy(other); }
  ShortBytes(ShortBytes&& other) noexcept { take(other); }
  ShortBytes& operator=(const ShortBytes& other) {
    if (this != &other) {
      release();
      copy(other);
    }
    return *this;
  }
  ShortBytes& operator=(ShortBytes&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~ShortBytes() { release(); }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::byte* data() const { return is_inline() ? inline_ : heap(); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data(), size_}; }

  friend bool operator==(const ShortBytes& a, const ShortBytes& b) {
    return a.size_ == b.size_ && std::memcmp(a.data(), b.data(), a.size_) == 0;
  }

 private:
  static_assert(kInline >= sizeof(std::byte*));

  [[nodiscard]] bool is_inline() const { return size_ <= kInline; }
  [[nodiscard]] std::byte* heap() const {
    std::byte* pointer;
    std::memcpy(&pointer, inline_, sizeof pointer);
    return pointer;
  }
  void assign(std::span<const std::byte> bytes) {
    if (bytes.size() > kMaxSize) throw std::length_error("ShortBytes: more than 65535 bytes");
    size_ = static_cast<std::uint16_t>(bytes.size());
    std::byte* to = inline_;
    if (!is_inline()) {
      to = new std::byte[bytes.size()];
      std::memcpy(inline_, &to, sizeof to);
    }
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  void copy(const ShortBytes& other) {
    if (!other.is_inline()) return assign(other.bytes());
    size_ = other.size_;
    std::memcpy(inline_, other.inline_, kInline);
  }
  void take(ShortBytes& other) {
    size_ = std::exchange(other.size_, std::uint16_t{0});
    std::memcpy(inline_, other.inline_, kInline);
  }
  void release() {
    if (!is_inline()) delete[] heap();
    size_ = 0;
  }

  std::uint16_t size_ = 0;
  std::byte inline_[kInline] = {};  // copied and moved as a whole
};

// The bytes of a BPF map's value.
using RowValue = ShortBytes<14>;

// One element of one map: which map, and the bytes of its key (LPM keys in canonical form: host
// bits zero).
class RowKey {
 public:
  RowKey() = default;
  RowKey(MapIndex map, std::span<const std::byte> key) : key_(key), map_(map) {}
  template <typename Struct>
  requires std::is_trivially_copyable_v<Struct> && std::has_unique_object_representations_v<Struct>
  static RowKey of(MapIndex map, const Struct& key) {
    return RowKey(map, std::as_bytes(std::span(&key, 1)));
  }

  [[nodiscard]] MapIndex map() const { return map_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return key_.bytes(); }
  template <typename Struct>
  requires std::is_trivially_copyable_v<Struct>
  [[nodiscard]] Struct as() const {
    Struct result{};
    std::memcpy(&result, key_.data(), std::min(sizeof result, key_.size()));
    return result;
  }

  friend bool operator==(const RowKey& a, const RowKey& b) {
    return a.map_ == b.map_ && a.key_ == b.key_;
  }

 private:
  ShortBytes<26> key_;
  MapIndex map_ = 0;
};

template <typename Struct>
requires std::is_trivially_copyable_v<Struct> && std::has_unique_object_representations_v<Struct>
    RowValue row_value(const Struct& value) {
  return RowValue(std::as_bytes(std::span(&value, 1)));
}

// A 64-bit hash of the map and the key's bytes: equal keys only, the same in every process.
struct RowKeyHash {
  [[nodiscard]] std::size_t operator()(const RowKey& key) const noexcept;
};

}  // namespace mapgate::maps
