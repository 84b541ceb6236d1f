// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "agent/dns/answer_gate.h"
#include "agent/policy/address.h"

namespace mapgate::dns {

// What one (name, address) of a workload is kept by. A limit of an outer level is never below an
// inner one: the constructor raises it.
struct NameCacheLimits {
  // An address lives for max(TTL, min_ttl), at most max_ttl, and then for grace.
  std::chrono::seconds min_ttl{60};
  std::chrono::seconds max_ttl{std::chrono::hours(24)};
  std::chrono::seconds grace{60};
  // Pairs of name and address. Beyond, the least recently resolved pair of the same name, workload,
  // or of all is evicted; one whose address is in use only if all are.
  std::size_t max_per_name = 2048;
  std::size_t max_per_workload = 16384;
  std::size_t max_total = 98304;
};

// The state that the row of (workload, address) must get: 0 port sets means none.
struct AddressChange {
  WorkloadId workload = 0;
  policy::IpAddress address;
  std::uint64_t port_sets = 0;

  friend bool operator==(const AddressChange&, const AddressChange&) = default;
};
using AddressChanges = std::vector<AddressChange>;

// One name that holds an address open. An address found in the kernel at a start, of which no name
// is known, has the name "".
struct CachedAddress {
  WorkloadId workload = 0;
  std::string_view name;
  policy::IpAddress address;
  std::uint64_t port_sets = 0;  // of the name
  TimePoint expires{};
  TimePoint last_resolved{};
};

struct WorkloadAddress {
  WorkloadId workload = 0;
  policy::IpAddress address;

  friend bool operator==(const WorkloadAddress&, const WorkloadAddress&) = default;
};

struct NameCacheCounters {
  std::uint64_t learned = 0;    // pairs that were new
  std::uint64_t refreshed = 0;  // pairs that were there
  std::uint64_t expired = 0;
  std::uint64_t forgotten = 0;  // by forget() or repolicy()
  std::uint64_t evicted_per_name = 0;
  std::uint64_t evicted_per_workload = 0;
  std::uint64_t evicted_total = 0;
  std::uint64_t evicted_in_use = 0;  // of these, addresses that were in use
  std::uint64_t too_many = 0;        // answers with more addresses than max_per_name
};

// Which addresses every workload's names have open, and until when. An address is open with the
// port sets of all names that hold it, and goes when the last one goes.
//
// A pure data structure: no I/O, no clock. Calls append to `changes` what must change, each address
// at most once per call; applied in order they keep a map equal to the cache. Names are compared as
// they are (hand them in as in Question::name). One operation on a pair costs O(log pairs). Not
// thread-safe.
class NameCache {
 public:
  // `dropped` is called with every pair that goes by itself, because it has expired or was evicted.
  // It must not use the cache.
  using Visitor = std::function<void(const CachedAddress&)>;
  explicit NameCache(const NameCacheLimits& limits = {}, Visitor dropped = {});
  ~NameCache();
  NameCache(const NameCache&) = delete;
  NameCache& operator=(const NameCache&) = delete;

  // An answer: `name` opens `port_sets` (not 0) at these addresses. Sets the port sets of the whole
  // name. False, and nothing changes, if there are more than max_per_name addresses.
  [[nodiscard]] bool learn(WorkloadId workload, std::string_view name, std::uint64_t port_sets,
                           std::span<const LearnedAddress> addresses, TimePoint now,
                           AddressChanges& changes);

  // Takes one pair back in as it was listed by an earlier process.
  void restore(const CachedAddress& entry, AddressChanges& changes);

  // An address that is open in the kernel. Unless a name holds it, it is kept for min_ttl and grace
  // under the name "".
  void adopt(WorkloadId workload, const policy::IpAddress& address, std::uint64_t port_sets,
             TimePoint now, AddressChanges& changes);

  // Drops up to `max_pairs` pairs that have expired; see next_expiry() for more.
  void expire(TimePoint now, std::size_t max_pairs, AddressChanges& changes);
  [[nodiscard]] std::optional<TimePoint> next_expiry() const;

  void forget(WorkloadId workload, std::string_view name, AddressChanges& changes);

  // These addresses, and no others, are in use from now on. What it does not have is left out.
  void set_in_use(std::span<const WorkloadAddress> addresses);
  // Whether a limit is near enough for it to matter what is in use.
  [[nodiscard]] bool is_crowded() const;

  // A policy change: sets every name's port sets to what `port_sets` says (0: forgotten). It gets
  // the workload, the name ("" for adopted addresses, once for each) and the present port sets.
  using PortSetsOf = std::function<std::uint64_t(WorkloadId, std::string_view, std::uint64_t)>;
  void repolicy(const PortSetsOf& port_sets, AddressChanges& changes);

  // The port sets that are open at an address; 0: none.
  [[nodiscard]] std::uint64_t port_sets(WorkloadId workload,
                                        const policy::IpAddress& address) const;

  // Every pair, name by name. The cache must not be changed meanwhile.
  void for_each(const Visitor& visit) const;
  // The pairs of one name, or of one address.
  void for_each_of_name(WorkloadId workload, std::string_view name, const Visitor& visit) const;
  void for_each_of_address(WorkloadId workload, const policy::IpAddress& address,
                           const Visitor& visit) const;

  [[nodiscard]] std::size_t names() const;
  [[nodiscard]] std::size_t addresses() const;
  [[nodiscard]] std::size_t pairs() const;
  [[nodiscard]] const NameCacheCounters& counters() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mapgate::dns
