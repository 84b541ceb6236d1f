// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "agent/dns/answer_gate.h"
#include "agent/policy/address.h"

namespace mapgate::dns {

// The resolvers that the node itself uses: the nameserver lines of its resolv.conf(5) files. They
// change while the daemon runs, by DHCP or a VPN. Not thread-safe.
class SystemResolvers {
 public:
  // The C library's file, and that of systemd-resolved, which has the resolvers behind its stub:
  // containers are given those.
  [[nodiscard]] static std::vector<std::filesystem::path> default_files();

  // A file that cannot be read names no resolver, until it can.
  explicit SystemResolvers(std::vector<std::filesystem::path> files) : files_(std::move(files)) {}

  // Reads the files at most once a second.
  [[nodiscard]] bool contains(const policy::IpAddress& address, TimePoint now);

 private:
  void read();

  const std::vector<std::filesystem::path> files_;
  std::vector<policy::IpAddress> resolvers_;
  TimePoint next_read_{};
};

// The addresses of a file's nameserver lines. The unspecified address is loopback's, where the
// kernel connects it to; a zone (fe80::1%eth0) is left out.
[[nodiscard]] std::vector<policy::IpAddress> parse_nameservers(std::string_view resolv_conf);

}  // namespace mapgate::dns
