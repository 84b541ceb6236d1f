// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/row.h>

namespace mapgate::maps {
namespace {

__extension__ using Uint128 = unsigned __int128;

// Odd constants with about half of their bits set (digits of pi).
constexpr std::uint64_t kFirst = 0x243f6a8885a308d3;
constexpr std::uint64_t kSecond = 0x13198a2e03707345;

std::uint64_t load(const std::byte* from, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, size);
  return word;
}

// A full multiplication, both halves folded: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const Uint128 product = static_cast<Uint128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::size_t RowKeyHash::operator()(const RowKey& key) const noexcept {
  const auto bytes = key.bytes();
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t state = kFirst ^ (static_cast<std::uint64_t>(key.map()) << 32) ^ left;
  for (; left > 8; at += 8, left -= 8) state = mix(load(at, 8) ^ kSecond, state ^ kFirst);
  state = mix(load(at, left) ^ kSecond, state ^ kFirst);
  return mix(state ^ kFirst, kSecond);
}

}  // namespace mapgate::maps
