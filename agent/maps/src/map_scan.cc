// SPDX-License-Identifier: Apache-2.0
#include "agent/maps/src/map_scan.h"

#include <algorithm>
#include <cerrno>

namespace mapgate::maps {
namespace {

// The kernel returns whole buckets of a hash, or ENOSPC: fewer would be asking for that.
constexpr std::size_t kSmallestLookup = 256;
constexpr std::size_t kSmallestCursor = 4;
constexpr int kMostInterruptions = 16;

}  // namespace

MapScan::MapScan(const Map& map, MapCalls& calls, const std::function<reconciler::TimePoint()>& now,
                 reconciler::Duration call_limit, std::size_t value_size)
    : map_(map),
      calls_(calls),
      now_(now),
      value_size_(value_size),
      batch_size_(call_limit, map.info().key_size + value_size),
      smallest_(kSmallestLookup) {}

void MapScan::begin() {
  started_ = false;
  ended_ = false;
  visited_ = 0;
  stepped_over_.clear();
  const std::size_t cursor_size = std::max<std::size_t>(map_.info().key_size, kSmallestCursor);
  cursor_.assign(cursor_size, std::byte{0});
  next_cursor_.assign(cursor_size, std::byte{0});
}

std::expected<bool, int> MapScan::next(bool has_lookup_batch, std::size_t max, const Visit& visit) {
  // A trie starts again from its first element when the one at the cursor is gone, and so does
  // next_key: without a bound, a scan beside somebody who deletes might never end.
  if (visited_ > 2 * std::uint64_t{map_.info().max_entries} + kSmallestLookup)
    return std::unexpected(EAGAIN);
  for (auto& [key, value] : std::exchange(stepped_over_, {})) visit(key, value);
  if (ended_) return true;
  return has_lookup_batch ? next_batch(max, visit) : next_singly(max, visit);
}

void MapScan::advance() {
  std::swap(cursor_, next_cursor_);
  started_ = true;
}

void MapScan::step_over(const std::function<bool(std::span<const std::byte>)>& going) {
  const std::size_t key_size = map_.info().key_size;
  values_.resize(value_size_);
  while (started_ && !ended_ && going(std::span(cursor_).first(key_size))) {
    const int error = calls_.next_key(map_.fd(), cursor_.data(), next_cursor_.data());
    ended_ = error == ENOENT;
    // On an error, or if others delete what is next, the scan starts again at worst: seen twice is
    // no harm.
    if (error != 0 || calls_.lookup(map_.fd(), next_cursor_.data(), values_.data()) != 0) return;
    ++visited_;
    advance();
    const auto key = std::span(cursor_).first(key_size);
    if (!going(key)) stepped_over_.push_back({{key.begin(), key.end()}, values_});
  }
}

int MapScan::lookup_batch(std::size_t size, std::uint32_t& count) {
  keys_.resize(size * map_.info().key_size);
  values_.resize(size * value_size_);
  count = static_cast<std::uint32_t>(size);
  const auto start = now_();
  const int error = calls_.lookup_batch(map_.fd(), started_ ? cursor_.data() : nullptr,
                                        next_cursor_.data(), keys_.data(), values_.data(), count);
  count = std::min(count, static_cast<std::uint32_t>(size));
  if (error == 0 || error == ENOENT) batch_size_.record(count, now_() - start);
  return error;
}

std::expected<bool, int> MapScan::next_batch(std::size_t max, const Visit& visit) {
  std::uint32_t count = 0;
  int error = 0;
  for (int interruptions = 0;;) {
    const std::size_t size = std::max(std::min(max, batch_size_.get()), smallest_);
    error = lookup_batch(size, count);
    if (error == ENOSPC && size < 2 * std::size_t{map_.info().max_entries}) {
      smallest_ = 2 * size;
      continue;
    }
    // Tries of kernels before 6.14 give up when elements vanish before their eyes; what they have
    // is good.
    if (error == EINTR && count == 0 && ++interruptions < kMostInterruptions) continue;
    break;
  }
  const bool partial = error == EINTR && count > 0;
  if (error != 0 && error != ENOENT && !partial) return std::unexpected(error);
  const std::size_t key_size = map_.info().key_size;
  for (std::size_t i = 0; i < count; ++i)
    visit(std::span(keys_).subspan(i * key_size, key_size),
          std::span(values_).subspan(i * value_size_, value_size_));
  visited_ += count;
  advance();
  return error == ENOENT;
}

std::expected<bool, int> MapScan::next_singly(std::size_t max, const Visit& visit) {
  values_.resize(value_size_);
  const std::size_t size = std::clamp<std::size_t>(max, 1, kSmallestLookup);
  for (std::size_t i = 0; i < size; ++i, ++visited_) {
    const void* cursor = started_ ? cursor_.data() : nullptr;
    if (const int error = calls_.next_key(map_.fd(), cursor, next_cursor_.data()); error != 0)
      return error == ENOENT ? std::expected<bool, int>(true) : std::unexpected(error);
    const int error = calls_.lookup(map_.fd(), next_cursor_.data(), values_.data());
    // Gone between the two calls: going on from it would start again, so ask for the one after the
    // cursor again. Only an array of maps has places that are empty, and can go on from them.
    if (error == ENOENT && map_.info().type != BPF_MAP_TYPE_ARRAY_OF_MAPS) continue;
    if (error != 0 && error != ENOENT) return std::unexpected(error);
    if (error == 0) visit(std::span(next_cursor_).first(map_.info().key_size), values_);
    advance();
  }
  return false;
}

}  // namespace mapgate::maps
