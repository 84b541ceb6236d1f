// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/address.h"

#include <arpa/inet.h>
#include <boost/container_hash/hash.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace mapgate::policy {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedBytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool same_leading_bits(const IpAddress::Bytes& a, const IpAddress::Bytes& b, unsigned length) {
  const std::size_t whole = length / 8;
  if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
  const unsigned rest = length % 8;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

bool host_bits_are_zero(const IpAddress::Bytes& bytes, unsigned length) {
  IpAddress::Bytes zero{};
  const std::size_t whole = (length + 7) / 8;
  if (!std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end(), zero.begin()))
    return false;
  const unsigned rest = length % 8;
  return rest == 0 || (bytes[whole - 1] & (0xffU >> rest)) == 0;
}

}  // namespace

IpAddress IpAddress::from_v4(std::span<const std::uint8_t, 4> octets) {
  Bytes bytes{};
  std::ranges::copy(kMappedBytes, bytes.begin());
  std::ranges::copy(octets, bytes.begin() + kMappedBytes.size());
  return IpAddress(bytes);
}

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string terminated(text);
  if (terminated.size() != std::strlen(terminated.c_str())) return std::nullopt;
  std::array<std::uint8_t, 4> octets{};
  if (inet_pton(AF_INET, terminated.c_str(), octets.data()) == 1) return from_v4(octets);
  Bytes bytes{};
  if (inet_pton(AF_INET6, terminated.c_str(), bytes.data()) == 1) return IpAddress(bytes);
  return std::nullopt;
}

bool IpAddress::is_v4() const {
  return std::equal(kMappedBytes.begin(), kMappedBytes.end(), bytes_.begin());
}

std::string IpAddress::with_port(std::uint16_t port) const {
  return (is_v4() ? to_string() : '[' + to_string() + ']') + ':' + std::to_string(port);
}

bool IpAddress::is_loopback() const {
  constexpr std::uint8_t kLoopbackNet = 127;
  constexpr IpAddress kLoopback6(Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  return is_v4() ? bytes_[12] == kLoopbackNet : *this == kLoopback6;
}

std::string IpAddress::to_string() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_v4()) {
    inet_ntop(AF_INET, bytes_.data() + kMappedBytes.size(), text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, bytes_.data(), text.data(), text.size());
  }
  return text.data();
}

std::size_t hash_value(const IpAddress& address) {
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), address.bytes_.data(), sizeof words);
  std::size_t seed = 0;
  boost::hash_combine(seed, words[0]);
  boost::hash_combine(seed, words[1]);
  return seed;
}

std::expected<Prefix, std::string> Prefix::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::string_view address_text = text.substr(0, slash);
  const std::optional<IpAddress> address = IpAddress::parse(address_text);
  if (!address) return std::unexpected("is not an IPv4 or IPv6 address or prefix");

  const bool dotted = address_text.find(':') == std::string_view::npos;
  const unsigned longest = dotted ? 32 : 128;
  unsigned length = longest;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
    const bool leading_zero = digits.size() > 1 && digits.front() == '0';
    if (error != std::errc{} || end != digits.data() + digits.size() || leading_zero ||
        length > longest) {
      return std::unexpected("has a prefix length that is not in 0.." + std::to_string(longest));
    }
  }

  Prefix result;
  result.address_ = *address;
  result.length_ = dotted ? kMappedLength + length : length;
  if (!host_bits_are_zero(address->bytes(), result.length_)) {
    return std::unexpected("has bits set behind its prefix length");
  }
  return result;
}

bool Prefix::contains(const IpAddress& address) const {
  return is_v4() == address.is_v4() &&
         same_leading_bits(address_.bytes(), address.bytes(), length_);
}

bool Prefix::contains(const Prefix& other) const {
  return length_ <= other.length_ && is_v4() == other.is_v4() &&
         same_leading_bits(address_.bytes(), other.address_.bytes(), length_);
}

std::string Prefix::to_string() const {
  return address_.to_string() + '/' + std::to_string(is_v4() ? length_ - kMappedLength : length_);
}

}  // namespace mapgate::policy
