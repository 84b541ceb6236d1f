// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/integer_text.h"

#include <algorithm>
#include <bit>

namespace mapgate::schema {
namespace {

constexpr Uint128 kMax = ~Uint128{0};

Uint128 mask(unsigned bits) {
  return bits >= 128 ? kMax : (Uint128{1} << bits) - 1;
}

std::optional<unsigned> digit_of(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A') + 10;
  return std::nullopt;
}

// Which byte and which bit of it is bit `index` of a bitfield's storage.
struct BitPlace {
  std::size_t byte;
  unsigned shift;
};
BitPlace bit_place(unsigned index) {
  if constexpr (std::endian::native == std::endian::little) return {index / 8, index % 8};
  return {index / 8, 7 - index % 8};
}
// And which bit of the value is its `i`th.
unsigned value_bit(unsigned i, unsigned size) {
  if constexpr (std::endian::native == std::endian::little) return i;
  return size - 1 - i;
}

}  // namespace

std::optional<Integer> parse_integer(std::string_view text) {
  Integer result;
  if (text.starts_with('-')) {
    result.negative = true;
    text.remove_prefix(1);
  }
  unsigned base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  }
  if (text.empty()) return std::nullopt;
  for (const char c : text) {
    const auto digit = digit_of(c);
    if (!digit || *digit >= base) return std::nullopt;
    if (result.magnitude > (kMax - *digit) / base) return std::nullopt;
    result.magnitude = result.magnitude * base + *digit;
  }
  if (result.magnitude == 0) result.negative = false;
  return result;
}

std::string to_text(const Integer& integer) {
  std::string text;
  Uint128 rest = integer.magnitude;
  do {
    text += static_cast<char>('0' + static_cast<unsigned>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (integer.negative) text += '-';
  std::ranges::reverse(text);
  return text;
}

bool fits(const Integer& integer, unsigned bits, bool is_signed) {
  if (!is_signed) return !integer.negative && integer.magnitude <= mask(bits);
  const Uint128 half = Uint128{1} << (bits - 1);
  return integer.negative ? integer.magnitude <= half : integer.magnitude < half;
}

std::string range_text(unsigned bits, bool is_signed) {
  if (!is_signed) return "0.." + to_text({false, mask(bits)});
  const Uint128 half = Uint128{1} << (bits - 1);
  return to_text({true, half}) + ".." + to_text({false, half - 1});
}

Uint128 to_bits(const Integer& integer, unsigned bits) {
  return (integer.negative ? -integer.magnitude : integer.magnitude) & mask(bits);
}

Integer from_bits(Uint128 value, unsigned bits, bool is_signed) {
  if (!is_signed || (value >> (bits - 1) & 1) == 0) return {false, value};
  return {true, -value & mask(bits)};
}

void store(Uint128 value, bool big_endian, std::span<std::byte> bytes) {
  const bool most_first = big_endian || std::endian::native == std::endian::big;
  for (std::size_t i = 0; i < bytes.size(); ++i, value >>= 8)
    bytes[most_first ? bytes.size() - 1 - i : i] = static_cast<std::byte>(value & 0xff);
}

Uint128 load(std::span<const std::byte> bytes, bool big_endian) {
  const bool most_first = big_endian || std::endian::native == std::endian::big;
  Uint128 value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    value = value << 8 | static_cast<unsigned>(bytes[most_first ? i : bytes.size() - 1 - i]);
  return value;
}

void store_bits(Uint128 value, unsigned offset, unsigned size, std::span<std::byte> bytes) {
  for (unsigned i = 0; i < size; ++i) {
    if ((value >> value_bit(i, size) & 1) == 0) continue;
    const BitPlace place = bit_place(offset + i);
    bytes[place.byte] |= std::byte{1} << static_cast<int>(place.shift);
  }
}

Uint128 load_bits(std::span<const std::byte> bytes, unsigned offset, unsigned size) {
  Uint128 value = 0;
  for (unsigned i = 0; i < size; ++i) {
    const BitPlace place = bit_place(offset + i);
    const auto bit = static_cast<unsigned>(bytes[place.byte] >> static_cast<int>(place.shift)) & 1;
    value |= Uint128{bit} << value_bit(i, size);
  }
  return value;
}

}  // namespace mapgate::schema
