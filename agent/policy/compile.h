// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mapgate/maps/row.h>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/policy/allocations.h"
#include "agent/policy/lpm_table.h"
#include "agent/policy/spec.h"

namespace mapgate::policy {

class NameMatcher;

// Which maps of the daemon's MapSet the rows go to.
struct MapIndices {
  maps::MapIndex addresses = 0;
  maps::MapIndex prefixes = 0;
  maps::MapIndex ports = 0;
  maps::MapIndex workloads = 0;
};

struct Row {
  maps::RowKey key;
  maps::RowValue value;
};

// Where in its workload a rule stands: egress[index] or dns[index].
struct RuleReference {
  enum class List { kEgress, kDns };
  List list = List::kEgress;
  std::size_t index = 0;

  friend bool operator==(const RuleReference&, const RuleReference&) = default;
};

// What a workload may do with a name.
struct NameMatch {
  bool resolvable = false;  // a rule or a dns entry matches
  // Opened at its addresses: the bits of every rule that matches. 0 opens nothing.
  std::uint64_t port_sets = 0;
  std::optional<RuleReference> rule;  // the first that matches; egress goes before dns
};

struct CompiledWorkload {
  std::uint32_t id = 0;
  std::string name;
  std::string cgroup;
  Mode mode = Mode::kEnforce;
  GateTimeoutAction on_gate_timeout = GateTimeoutAction::kServfail;
  RevokeAction on_revoke = RevokeAction::kKeep;
  DeniedNameAnswer on_denied_name = DeniedNameAnswer::kRefused;
  bool allow_loopback = true;
  ResolverSelector resolvers;
  std::size_t egress_rules = 0;                // of the spec
  LpmTable prefixes;                           // of the 128 address bits
  LpmTable ports;                              // of the 32 bits of protocol and port
  std::shared_ptr<const NameMatcher> matcher;  // never null
};

// A spec turned into what the kernel's maps hold, and a matcher for names. Immutable: any number of
// threads may read one. Cheap to share by shared_ptr.
class CompiledPolicy {
 public:
  // A policy without workloads: what a daemon has before its first spec.
  CompiledPolicy() = default;

  [[nodiscard]] const std::map<std::uint32_t, CompiledWorkload>& workloads() const {
    return workloads_;
  }
  [[nodiscard]] const CompiledWorkload* find_workload(std::string_view name) const;
  // `name` as normalize_name() returns it. An unknown workload may resolve nothing. Does not
  // allocate.
  [[nodiscard]] NameMatch match(std::uint32_t workload, std::string_view name) const;
  // Every static row: mg_workloads, mg_prefixes, mg_ports.
  [[nodiscard]] std::vector<Row> rows() const;

  [[nodiscard]] const MapIndices& map_indices() const { return indices_; }
  // What this policy uses: for Allocations::release_unused.
  [[nodiscard]] const Allocations::Workloads& used_allocations() const { return used_; }

 private:
  friend class Compiler;

  std::map<std::uint32_t, CompiledWorkload> workloads_;  // by id
  Allocations::Workloads used_;
  MapIndices indices_;
};

// Compiles a spec that parse_spec accepted. Takes ids and bits from `allocations`, which must be
// stored before any row of the result is written; on failure `allocations` is as it was. Fails,
// with a reason for people, when ids or bits run out (those of an older policy still count until
// they are released) or the rows do not fit spec.node.maps.
[[nodiscard]] std::expected<CompiledPolicy, std::string> compile(const Spec& spec,
                                                                 Allocations& allocations,
                                                                 const MapIndices& indices);

// The row of mg_addresses that opens `port_sets` at an address that a workload learned.
[[nodiscard]] maps::RowKey address_key(const MapIndices& indices, std::uint32_t workload,
                                       const IpAddress& address);
[[nodiscard]] maps::RowValue port_sets_value(std::uint64_t port_sets);

}  // namespace mapgate::policy
