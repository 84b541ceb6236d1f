// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/port_set.h"

#include <algorithm>
#include <utility>

namespace mapgate::policy {

std::string protocol_name(std::uint16_t protocol) {
  switch (protocol) {
    case kIcmp:
      return "icmp";
    case kTcp:
      return "tcp";
    case kUdp:
      return "udp";
    case kIcmpV6:
      return "icmpv6";
    case kSctp:
      return "sctp";
    default:
      return "protocol " + std::to_string(protocol);
  }
}

PortSet PortSet::everything() {
  PortSet result;
  result.everything_ = true;
  return result;
}

PortSet::PortSet(std::vector<PortRange> ranges) {
  std::ranges::sort(ranges);
  for (const PortRange& range : ranges) {
    if (!ranges_.empty()) {
      PortRange& last = ranges_.back();
      if (last.protocol == range.protocol && range.first <= last.last + 1U) {
        last.last = std::max(last.last, range.last);
        continue;
      }
    }
    ranges_.push_back(range);
  }
}

bool PortSet::contains(std::uint8_t protocol, std::uint16_t port) const {
  if (everything_) return !is_encrypted_dns(protocol, port);
  return std::ranges::any_of(ranges_, [&](const PortRange& range) {
    return range.protocol == protocol && range.first <= port && port <= range.last;
  });
}

std::string PortSet::to_string() const {
  if (everything_) return "all";
  std::string text;
  for (const PortRange& range : ranges_) {
    if (!text.empty()) text += ',';
    text += protocol_name(range.protocol);
    text += ':' + std::to_string(range.first);
    if (range.last != range.first) text += '-' + std::to_string(range.last);
  }
  return text;
}

}  // namespace mapgate::policy
