// SPDX-License-Identifier: Apache-2.0
#include "agent/control/map_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <functional>
#include <span>

#include <mapgate/maps/map_error.h>

namespace mapgate::control {
namespace {

using Bytes = std::vector<std::byte>;
using Page = std::expected<MapPage, std::string>;

// The kernel's cursor of batches is as large as a key, and at least that.
constexpr std::size_t kMinCursor = 4;
// A bucket of a hash may hold more than fits: then the buffer grows.
constexpr std::size_t kMinBatch = 256;
// Of the values of one batch to begin with: with many CPUs an element may be megabytes.
constexpr std::size_t kMaxBatchBytes = 8U << 20;

constexpr char kByBatch = 'b';
constexpr char kByKey = 'k';

std::string to_token(char kind, std::span<const std::byte> place) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string token(1, kind);
  for (const std::byte b : place) {
    token += kDigits[static_cast<unsigned>(b) >> 4];
    token += kDigits[static_cast<unsigned>(b) & 0xf];
  }
  return token;
}

std::optional<Bytes> from_token(std::string_view token, std::size_t size) {
  if (token.size() != 1 + 2 * size) return std::nullopt;
  Bytes place(size);
  for (std::size_t i = 0; i < size; ++i) {
    const char* digits = token.data() + 1 + 2 * i;
    std::uint8_t value = 0;
    const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc{} || end != digits + 2) return std::nullopt;
    place[i] = std::byte{value};
  }
  return place;
}

std::unexpected<std::string> failed(int error) {
  return std::unexpected("cannot read the map: " + maps::describe_errno(error));
}

class PageReader {
 public:
  PageReader(maps::MapCalls& calls, const maps::Map& map, std::size_t max)
      : calls_(calls),
        map_(map),
        key_size_(map.info().key_size),
        value_size_(map.info().value_size),
        cpus_(maps::is_per_cpu(map.info().type) ? calls.possible_cpus() : 1),
        stride_(maps::is_per_cpu(map.info().type) ? (value_size_ + 7) / 8 * 8 : value_size_),
        max_(max) {}

  // Nothing: the kernel has no batches for this map.
  std::optional<Page> by_batch(std::optional<Bytes> cursor) {
    for (std::size_t size = first_batch();; size *= 2) {
      Bytes keys(size * key_size_);
      Bytes values(size * cpus_ * stride_);
      Bytes next(std::max(key_size_, kMinCursor));
      auto count = static_cast<std::uint32_t>(size);
      const int error = calls_.lookup_batch(map_.fd(), cursor ? cursor->data() : nullptr,
                                            next.data(), keys.data(), values.data(), count);
      if (error == ENOSPC && size <= map_.info().max_entries) continue;
      if (error == EINTR) continue;
      if (error == maps::kErrnoNotSupported || error == EINVAL) return std::nullopt;
      if (error != 0 && error != ENOENT) return failed(error);
      MapPage page;
      for (std::size_t i = 0; i < count; ++i)
        page.entries.push_back({part(keys, i * key_size_, key_size_), values_at(values, i)});
      if (error == 0) page.next = to_token(kByBatch, next);
      return page;
    }
  }

  Page by_key(std::optional<Bytes> after) {
    MapPage page;
    Bytes key(key_size_);
    while (page.entries.size() < max_) {
      int error = calls_.next_key(map_.fd(), after ? after->data() : nullptr, key.data());
      if (error == ENOENT) return page;
      if (error != 0) return failed(error);
      after = key;
      Bytes value(cpus_ * stride_);
      error = calls_.lookup(map_.fd(), key.data(), value.data());
      if (error == 0) page.entries.push_back({key, values_at(value, 0)});
      if (error != 0 && error != ENOENT) return failed(error);
    }
    page.next = to_token(kByKey, *after);
    return page;
  }

 private:
  static Bytes part(const Bytes& bytes, std::size_t at, std::size_t size) {
    const auto start = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    return {start, start + static_cast<std::ptrdiff_t>(size)};
  }

  [[nodiscard]] std::size_t first_batch() const {
    const std::size_t fitting = std::max<std::size_t>(kMaxBatchBytes / (cpus_ * stride_), 1);
    return std::min(std::max(max_, kMinBatch), fitting);
  }

  [[nodiscard]] std::vector<Bytes> values_at(const Bytes& elements, std::size_t index) const {
    std::vector<Bytes> values;
    for (std::size_t cpu = 0; cpu < cpus_; ++cpu)
      values.push_back(part(elements, (index * cpus_ + cpu) * stride_, value_size_));
    if (std::ranges::adjacent_find(values, std::not_equal_to()) == values.end()) values.resize(1);
    return values;
  }

  maps::MapCalls& calls_;
  const maps::Map& map_;
  std::size_t key_size_;
  std::size_t value_size_;
  std::size_t cpus_;    // values of one element
  std::size_t stride_;  // from one of them to the next
  std::size_t max_;
};

}  // namespace

Page read_map_page(maps::MapCalls& calls, const maps::Map& map, std::string_view from,
                   std::size_t max) {
  PageReader reader(calls, map, max);
  const std::size_t key_size = map.info().key_size;
  if (from.empty()) {
    auto page = reader.by_batch(std::nullopt);
    return page ? std::move(*page) : reader.by_key(std::nullopt);
  }
  const bool batch = from.front() == kByBatch;
  auto place = from_token(from, batch ? std::max(key_size, kMinCursor) : key_size);
  if (!place || (!batch && from.front() != kByKey))
    return std::unexpected("from is not what an earlier page gave");
  if (!batch) return reader.by_key(std::move(place));
  auto page = reader.by_batch(std::move(place));
  return page ? std::move(*page) : std::unexpected("the map does not go on from there");
}

}  // namespace mapgate::control
