// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/policy/address.h"
#include "agent/policy/map_spec.h"
#include "agent/policy/pattern.h"
#include "agent/policy/port_set.h"

namespace mapgate::policy {

// The desired state that a user writes. docs/spec.md describes every field, docs/spec.schema.json
// is its schema.

enum class Mode { kEnforce, kAudit };

// What becomes of a held DNS answer whose rows did not reach the kernel in time.
enum class GateTimeoutAction { kServfail, kRelease, kDrop };

// What becomes of connections that a change of policy forbids.
enum class RevokeAction { kKeep, kDestroy };

// What a workload is told that asks for a name it may not resolve.
enum class DeniedNameAnswer { kRefused, kNxdomain, kDrop };

// Which resolvers a workload may ask: who answers decides which addresses are opened.
struct ResolverSelector {
  bool system = true;  // those that the node itself uses
  std::vector<Prefix> prefixes;

  friend bool operator==(const ResolverSelector&, const ResolverSelector&) = default;
};

// A matchName (normalised) or a matchPattern.
using NameSelector = std::variant<std::string, NamePattern>;

struct CidrSelector {
  Prefix cidr;
  std::vector<Prefix> except;  // each strictly inside cidr

  friend bool operator==(const CidrSelector&, const CidrSelector&) = default;
};

struct EgressRule {
  std::vector<NameSelector> to_fqdns;
  std::vector<CidrSelector> to_cidrs;  // toCIDR, then toCIDRSet
  PortSet ports;                       // toPorts and icmps; everything when the rule has neither

  friend bool operator==(const EgressRule&, const EgressRule&) = default;
};

struct WorkloadSpec {
  std::string name;
  std::string cgroup;  // path below the cgroup root: starts with '/', does not end with it
  Mode mode = Mode::kEnforce;
  GateTimeoutAction on_gate_timeout = GateTimeoutAction::kServfail;
  RevokeAction on_revoke = RevokeAction::kKeep;
  DeniedNameAnswer on_denied_name = DeniedNameAnswer::kRefused;
  bool allow_loopback = true;
  ResolverSelector resolvers;
  std::vector<EgressRule> egress;
  std::vector<NameSelector> dns;  // may be resolved, open nothing

  friend bool operator==(const WorkloadSpec&, const WorkloadSpec&) = default;
};

// max_entries of the maps. They are fixed when the maps are made.
struct MapSizes {
  std::uint32_t addresses = 65536;
  std::uint32_t prefixes = 16384;
  std::uint32_t ports = 16384;

  friend bool operator==(const MapSizes&, const MapSizes&) = default;
};

struct DnsSettings {
  // An address stays open for clamp(TTL, min_ttl, max_ttl) + grace.
  std::chrono::seconds min_ttl{60};
  std::chrono::seconds max_ttl{24 * 60 * 60};
  std::chrono::seconds grace{60};
  // How long an answer is held for its rows at most.
  std::chrono::milliseconds gate_deadline{1000};
  // How long the proxy waits for a resolver's answer.
  std::chrono::milliseconds upstream_timeout{4000};
  // Answers held at a time, over all workloads and of one; beyond that SERVFAIL.
  std::uint32_t max_held_answers = 4096;
  std::uint32_t max_held_answers_per_workload = 1024;
  // Learned pairs of name and address, of one name and of one workload; beyond that the one that
  // was resolved longest ago goes.
  std::uint32_t max_addresses_per_name = 1024;
  std::uint32_t max_addresses_per_workload = 16384;

  friend bool operator==(const DnsSettings&, const DnsSettings&) = default;
};

// The part that cannot change while the daemon runs.
struct NodeSettings {
  MapSizes maps;
  DnsSettings dns;

  friend bool operator==(const NodeSettings&, const NodeSettings&) = default;
};

struct Spec {
  NodeSettings node;
  std::vector<WorkloadSpec> workloads;  // names are unique, cgroups do not overlap
  std::vector<MapSpec> maps;            // names and pins are unique

  friend bool operator==(const Spec&, const Spec&) = default;
};

// One fault of a spec and its place.
struct SpecError {
  std::string file;
  unsigned line = 0;  // from 1; 0 when the fault is the file itself
  unsigned column = 0;
  std::string pointer;  // JSON pointer (RFC 6901); "" is the document
  std::string reason;

  // "web.yaml:7:12: /policy/workloads/0/mode: expected ..."
  [[nodiscard]] std::string to_string() const;
};

enum class SpecFormat { kYaml, kJson };

inline constexpr std::size_t kMaxSpecBytes = 16U << 20;
inline constexpr std::size_t kMaxSpecErrors =
    100;  // after that one entry says how many more there are

// By the file's name: .json is JSON, .yaml and .yml are YAML. Otherwise by content: JSON if it
// begins with '{'.
[[nodiscard]] SpecFormat detect_format(const std::filesystem::path& file, std::string_view text);

// Parses and checks a spec. All faults come back at once, in the order of their places; a document
// that is no YAML or JSON has just the one. `file` is what errors name. Never throws on bad input.
[[nodiscard]] std::expected<Spec, std::vector<SpecError>> parse_spec(std::string_view text,
                                                                     SpecFormat format,
                                                                     std::string_view file);

// Reads and parses a file. A file that cannot be read is a SpecError at line 0.
[[nodiscard]] std::expected<Spec, std::vector<SpecError>> load_spec(
    const std::filesystem::path& file);

}  // namespace mapgate::policy
