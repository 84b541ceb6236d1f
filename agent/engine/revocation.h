// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>

#include "agent/engine/connections.h"
#include "agent/policy/address.h"
#include "agent/policy/compile.h"

namespace mapgate::engine {

// Ends the connections that a change of policy forbids, of workloads that ask for it (onRevoke:
// destroy). Those that were forbidden before the change are none of its doing: their address may
// have expired, or come from a time before mapgate. Of these only the ones go whose names are known
// and have lost it. For the loop's thread.
class Revocation {
 public:
  // Both outlive it.
  Revocation(Connections& connections, spdlog::logger& log)
      : connections_(connections), log_(log) {}

  // Before the first row is taken away.
  [[nodiscard]] boost::asio::awaitable<void> before(const policy::CompiledPolicy& from,
                                                    const policy::CompiledPolicy& to);

  // The port sets that the names which an address had until they expired would open today; nothing:
  // no such name is known.
  using ExpiredPortSets =
      std::function<std::optional<std::uint64_t>(WorkloadId, const policy::IpAddress&)>;
  // Once the kernel holds nothing but `to`.
  [[nodiscard]] boost::asio::awaitable<void> after(const policy::CompiledPolicy& to,
                                                   const ExpiredPortSets& expired);

  struct Counters {
    std::uint64_t ended = 0;
    std::uint64_t failed = 0;    // could not be ended
    std::uint64_t unlisted = 0;  // changes of policy for which they could not be listed
  };
  [[nodiscard]] const Counters& counters() const { return counters_; }
  // The last ones, a line each, the newest last.
  [[nodiscard]] const std::deque<std::string>& recent() const { return recent_; }

 private:
  [[nodiscard]] std::vector<OpenConnection> choose(const policy::CompiledPolicy& to,
                                                   std::vector<OpenConnection> connections,
                                                   const ExpiredPortSets& expired);
  void report(const policy::CompiledPolicy& policy, const OpenConnection& connection,
              const std::expected<void, std::error_code>& result, bool logged);

  Connections& connections_;
  spdlog::logger& log_;
  // Which socket it is, for as long as it lives.
  using SocketName = std::pair<std::uint64_t, std::uint64_t>;
  [[nodiscard]] static SocketName name_of(const OpenConnection& connection) {
    return {connection.network, connection.socket.cookie};
  }

  std::set<SocketName> forbidden_before_;
  Counters counters_;
  std::deque<std::string> recent_;
};

}  // namespace mapgate::engine
