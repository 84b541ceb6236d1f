// SPDX-License-Identifier: Apache-2.0
// Integers of up to 128 bits, as text and in memory. Internal to agent/schema.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace mapgate::schema {

__extension__ using Uint128 = unsigned __int128;

// Any integer that a field can hold, signed or not.
struct Integer {
  bool negative = false;
  Uint128 magnitude = 0;  // not 0 if negative
};

// Decimal with an optional '-', or hexadecimal behind "0x". Nothing else around it.
[[nodiscard]] std::optional<Integer> parse_integer(std::string_view text);
[[nodiscard]] std::string to_text(const Integer& integer);

// Whether `bits` (1..128) can hold it.
[[nodiscard]] bool fits(const Integer& integer, unsigned bits, bool is_signed);
// "0..255"
[[nodiscard]] std::string range_text(unsigned bits, bool is_signed);

// Two's complement, of `bits` bits.
[[nodiscard]] Uint128 to_bits(const Integer& integer, unsigned bits);
[[nodiscard]] Integer from_bits(Uint128 value, unsigned bits, bool is_signed);

// 1..16 bytes.
void store(Uint128 value, bool big_endian, std::span<std::byte> bytes);
[[nodiscard]] Uint128 load(std::span<const std::byte> bytes, bool big_endian);

// The `size` bits from bit `offset` on, counted as compilers lay out bitfields in this machine's
// byte order. They lie within `bytes`.
void store_bits(Uint128 value, unsigned offset, unsigned size, std::span<std::byte> bytes);
[[nodiscard]] Uint128 load_bits(std::span<const std::byte> bytes, unsigned offset, unsigned size);

}  // namespace mapgate::schema
