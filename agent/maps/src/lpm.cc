// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/lpm.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

namespace mapgate::maps {
namespace {

constexpr std::size_t kPrefixLengthSize = sizeof(std::uint32_t);

std::optional<std::uint32_t> prefix_length(std::span<const std::byte> key) {
  if (key.size() < kPrefixLengthSize) return std::nullopt;
  std::uint32_t length;
  std::memcpy(&length, key.data(), sizeof length);
  if (length > 8 * (key.size() - kPrefixLengthSize)) return std::nullopt;
  return length;
}

// Which bits of the byte that the prefix ends in belong to it; none if it ends between two bytes.
std::byte partial_mask(std::uint32_t length) {
  return ~(std::byte{0xff} >> static_cast<int>(length % 8));
}

}  // namespace

bool canonicalize_lpm_key(std::span<std::byte> key) {
  const auto length = prefix_length(key);
  if (!length) return false;
  const auto rest = key.subspan(kPrefixLengthSize + *length / 8);
  if (rest.empty()) return true;
  rest.front() &= partial_mask(*length);
  std::ranges::fill(rest.subspan(1), std::byte{0});
  return true;
}

bool is_canonical_lpm_key(std::span<const std::byte> key) {
  const auto length = prefix_length(key);
  if (!length) return false;
  const auto rest = key.subspan(kPrefixLengthSize + *length / 8);
  if (rest.empty()) return true;
  return (rest.front() & ~partial_mask(*length)) == std::byte{0} &&
         std::ranges::all_of(rest.subspan(1), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace mapgate::maps
