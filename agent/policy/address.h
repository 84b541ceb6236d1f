// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace mapgate::policy {

// An IPv4 or IPv6 address as the BPF maps store it: 16 bytes in network order, IPv4 as IPv4-mapped
// IPv6
// (::ffff:a.b.c.d). An IPv4-mapped IPv6 address and the IPv4 address are the same value.
class IpAddress {
 public:
  using Bytes = std::array<std::uint8_t, 16>;

  constexpr IpAddress() = default;  // ::
  constexpr explicit IpAddress(const Bytes& bytes) : bytes_(bytes) {}
  // The four bytes of an IPv4 address in network order.
  [[nodiscard]] static IpAddress from_v4(std::span<const std::uint8_t, 4> octets);
  // What inet_pton(3) takes: dotted quad or IPv6 text, no zone, no surrounding space.
  [[nodiscard]] static std::optional<IpAddress> parse(std::string_view text);

  [[nodiscard]] bool is_v4() const;
  // 127.0.0.0/8 or ::1.
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }
  // Dotted quad for IPv4, RFC 5952 text for IPv6.
  [[nodiscard]] std::string to_string() const;

  // "192.0.2.1:53", "[2001:db8::1]:53"
  [[nodiscard]] std::string with_port(std::uint16_t port) const;

  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
  friend std::size_t hash_value(const IpAddress& address);  // for boost::hash

 private:
  Bytes bytes_{};
};

// An IPv4 or IPv6 prefix. Bits behind the prefix length are zero.
class Prefix {
 public:
  constexpr Prefix() = default;  // ::/0

  // "10.0.0.0/8", "2001:db8::/32", or an address alone, which stands for itself. Host bits that are
  // not zero are refused: "10.9.0.1/8" is more often a slip of the length than of the address. The
  // error is a reason for people.
  [[nodiscard]] static std::expected<Prefix, std::string> parse(std::string_view text);

  [[nodiscard]] const IpAddress& address() const { return address_; }
  // 0..128, of the 16-byte form: 10.0.0.0/8 has 104.
  [[nodiscard]] unsigned length() const { return length_; }
  // The prefix lies in ::ffff:0:0/96. An IPv6 prefix that is shorter than that is not IPv4, and
  // holds no IPv4 address: ::/0 is "all IPv6".
  [[nodiscard]] bool is_v4() const { return length_ >= kMappedLength && address_.is_v4(); }
  [[nodiscard]] bool contains(const IpAddress& address) const;
  [[nodiscard]] bool contains(const Prefix& other) const;
  // IPv4 prefixes with their IPv4 length.
  [[nodiscard]] std::string to_string() const;

  friend auto operator<=>(const Prefix&, const Prefix&) = default;

  static constexpr unsigned kMappedLength = 96;

 private:
  IpAddress address_;
  unsigned length_ = 0;
};

}  // namespace mapgate::policy
