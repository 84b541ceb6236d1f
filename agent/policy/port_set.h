// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace mapgate::policy {

// IANA protocol numbers of what a port set can name.
inline constexpr std::uint8_t kIcmp = 1;
inline constexpr std::uint8_t kTcp = 6;
inline constexpr std::uint8_t kUdp = 17;
inline constexpr std::uint8_t kIcmpV6 = 58;
inline constexpr std::uint8_t kSctp = 132;

// DNS over TLS (RFC 7858) and over QUIC (RFC 9250): what is asked there passes the proxy by, so a
// port set has this port only where a rule names it by itself.
inline constexpr std::uint16_t kEncryptedDnsPort = 853;
[[nodiscard]] constexpr bool is_encrypted_dns(std::uint16_t protocol, std::uint16_t port) {
  return port == kEncryptedDnsPort && (protocol == kTcp || protocol == kUdp);
}

// As a canonical text names it; "protocol 47" for one that no port set can name.
[[nodiscard]] std::string protocol_name(std::uint16_t protocol);

// Ports `first`..`last` (both included) of a protocol; of ICMP and ICMPv6 the message types.
struct PortRange {
  std::uint8_t protocol = 0;
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  friend auto operator<=>(const PortRange&, const PortRange&) = default;
};

// What a rule opens at its destinations: every protocol and port but encrypted DNS, or ranges of
// ports and ICMP types. Equal sets compare equal whatever ranges they were made of.
class PortSet {
 public:
  PortSet() = default;  // nothing
  [[nodiscard]] static PortSet everything();
  explicit PortSet(std::vector<PortRange> ranges);

  [[nodiscard]] bool is_everything() const { return everything_; }
  // Sorted, disjoint and not adjacent; empty when is_everything().
  [[nodiscard]] const std::vector<PortRange>& ranges() const { return ranges_; }
  [[nodiscard]] bool contains(std::uint8_t protocol, std::uint16_t port) const;
  // The canonical text that allocations are kept under: "all", or as in
  // "icmp:8,tcp:443,udp:8000-8080".
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const PortSet&, const PortSet&) = default;

 private:
  std::vector<PortRange> ranges_;
  bool everything_ = false;
};

}  // namespace mapgate::policy
