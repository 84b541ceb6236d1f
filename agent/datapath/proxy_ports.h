// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "bpf/abi.h"

namespace mapgate::datapath {

// The proxy's ports on 127.0.0.1 and [::1], host byte order. One UDP port per slot and family,
// because one socket may ask several resolvers and the port is all that tells their answers apart.
// 0: not listening.
struct ProxyPorts {
  std::array<std::uint16_t, MG_DNS_SLOTS> udp4{};
  std::array<std::uint16_t, MG_DNS_SLOTS> udp6{};
  std::uint16_t tcp4 = 0;
  std::uint16_t tcp6 = 0;

  friend bool operator==(const ProxyPorts&, const ProxyPorts&) = default;
};

}  // namespace mapgate::datapath
