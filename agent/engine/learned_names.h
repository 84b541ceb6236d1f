// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <spdlog/logger.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "agent/dns/answer_gate.h"
#include "agent/dns/name_cache.h"
#include "agent/engine/addresses_in_use.h"
#include "agent/engine/adopting_operations.h"
#include "agent/engine/connections.h"
#include "agent/engine/expired_names.h"
#include "agent/engine/types.h"
#include "agent/policy/compile.h"
#include "agent/state/store.h"

namespace mapgate::engine {

// The addresses that workloads learned: their names, their rows in the table, and what of them
// survives a restart. What has expired is erased from the table by itself. For the thread of `io`.
class LearnedNames {
 public:
  // `table`, `store`, `connections` and `log` outlive it.
  LearnedNames(boost::asio::io_context& io, Table& table, state::Store& store,
               Connections& connections, spdlog::logger& log, const policy::MapIndices& indices,
               const policy::DnsSettings& settings);

  // For the start: puts in what an earlier process has stored and `policy` still opens, then
  // addresses that only the maps know, for as long as a fresh answer without TTL would be.
  void restore(const policy::CompiledPolicy& policy, const AdoptingOperations::Snapshot& maps,
               Table::Transaction& transaction);

  // An answer: `name` opens `port_sets` (not 0) at these addresses. Stages their rows, those that
  // do not change as well, and those of what was evicted for them. False, and nothing changes: too
  // many addresses.
  [[nodiscard]] bool learn(const dns::HoldRequest& request, std::string_view workload_name,
                           std::uint64_t port_sets, Table::Transaction& transaction);

  // A change of policy, see dns::NameCache::repolicy. The caller stages the changes.
  [[nodiscard]] dns::AddressChanges repolicy(const dns::NameCache::PortSetsOf& port_sets);
  // Drops from the store what `policy` does not open. `allocations` still have the names of
  // workloads that left.
  void forget_revoked(const policy::CompiledPolicy& policy, const policy::Allocations& allocations);

  void stage(const dns::AddressChanges& changes, Table::Transaction& transaction) const;
  [[nodiscard]] maps::RowKey key_of(dns::WorkloadId workload,
                                    const policy::IpAddress& address) const {
    return policy::address_key(indices_, workload, address);
  }
  [[nodiscard]] const dns::NameCache& cache() const { return cache_; }
  [[nodiscard]] const ExpiredNames& expired() const { return expired_; }

 private:
  using RowKeys = boost::unordered_flat_set<maps::RowKey, maps::RowKeyHash>;

  // Returns the addresses whose names the policy does not have any more.
  [[nodiscard]] RowKeys restore_stored(const policy::CompiledPolicy& policy,
                                       dns::AddressChanges& changes);
  void adopt(const policy::CompiledPolicy& policy, const AdoptingOperations::Snapshot& maps,
             const RowKeys& revoked, dns::AddressChanges& changes);
  void remember(const dns::HoldRequest& request, std::string_view workload_name);
  void expire_at_next();
  void expire();

  Table& table_;
  state::Store& store_;
  spdlog::logger& log_;
  const policy::MapIndices indices_;
  const policy::DnsSettings settings_;
  ExpiredNames expired_;
  dns::NameCache cache_;
  AddressesInUse in_use_;
  boost::asio::steady_timer timer_;
  std::optional<dns::TimePoint> timer_at_;
  dns::TimePoint purged_at_{};
  // Held weakly by the handlers of the loop: one that is already queued may run after this object
  // is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// The bits of the port sets that `workload` has in `policy`.
[[nodiscard]] std::uint64_t used_port_sets(const policy::CompiledPolicy& policy,
                                           std::string_view workload);

}  // namespace mapgate::engine
