// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/datapath/error.h"
#include "bpf/abi.h"

namespace mapgate::datapath {

// What the kernel calls a network namespace, see bpf_get_netns_cookie(). Never used again while the
// system runs.
using NetworkCookie = std::uint64_t;
inline constexpr NetworkCookie kUnknownNetwork = MG_NETWORK_UNKNOWN;

// The network namespace of a socket of this process.
[[nodiscard]] Result<NetworkCookie> network_cookie(int socket);

// The same for kernels before 5.14, which tell only BPF programs: one is attached to the cgroup of
// this process while the socket connects. `socket` is a UDP socket over IPv4 that is of no use
// afterwards.
[[nodiscard]] Result<NetworkCookie> probe_network_cookie(int socket);

}  // namespace mapgate::datapath
