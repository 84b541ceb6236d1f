// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/compile.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "agent/policy/name_matcher.h"
#include "agent/policy/rows.h"
#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

// Something that opens one bit inside a prefix, but not inside the prefixes in it that are
// excepted.
struct Opening {
  std::uint8_t bit = 0;
  BitPrefix prefix;
  std::vector<BitPrefix> except;
};

// Turns openings into the nodes of an LPM trie. One pass over all prefixes in order, entering and
// leaving them like brackets, so the cost does not depend on how many openings cover a node.
class TableBuilder {
 public:
  explicit TableBuilder(const std::vector<Opening>& openings)
      : openings_(openings), obstacles_(openings.size(), 1) {
    for (std::size_t i = 0; i < openings.size(); ++i) {
      marks_.push_back({openings[i].prefix, -1, i});
      for (const BitPrefix& except : openings[i].except) marks_.push_back({except, +1, i});
    }
    std::ranges::sort(marks_);
  }

  LpmTable build() && {
    LpmTable table;
    for (const Mark& mark : marks_) {
      while (!path_.empty() && !path_.back().prefix.contains(mark.prefix)) {
        apply(path_.back().opening, -path_.back().obstacles);
        path_.pop_back();
      }
      apply(mark.opening, mark.obstacles);
      path_.push_back(mark);
      if (table.empty() || table.back().prefix != mark.prefix) table.push_back({mark.prefix, 0});
      table.back().port_sets = value_;
    }
    return table;
  }

 private:
  // Inside `prefix`, this many more things keep the opening shut: its own prefix takes away the one
  // at the start.
  struct Mark {
    BitPrefix prefix;
    int obstacles = 0;
    std::size_t opening = 0;

    friend auto operator<=>(const Mark&, const Mark&) = default;
  };

  void apply(std::size_t opening, int obstacles) {
    const bool was_open = obstacles_[opening] == 0;
    obstacles_[opening] += obstacles;
    const bool is_open = obstacles_[opening] == 0;
    if (was_open == is_open) return;
    const std::uint8_t bit = openings_[opening].bit;
    open_[bit] = is_open ? open_[bit] + 1 : open_[bit] - 1;
    const std::uint64_t mask = std::uint64_t{1} << bit;
    value_ = open_[bit] > 0 ? value_ | mask : value_ & ~mask;
  }

  const std::vector<Opening>& openings_;
  std::vector<int> obstacles_;                        // by opening; 0 is open
  std::array<std::size_t, MG_MAX_PORT_SETS> open_{};  // openings that are open, by bit
  std::uint64_t value_ = 0;
  std::vector<Mark> marks_;
  std::vector<Mark> path_;
};

BitPrefix to_bits(const Prefix& prefix) {
  return {.bits = prefix.address().bytes(), .length = static_cast<std::uint8_t>(prefix.length())};
}

// The LPM trie does not know that ::/0 is not meant to hold the IPv4 addresses, which are stored
// inside ::ffff:0:0/96.
BitPrefix all_ipv4() {
  constexpr std::array<std::uint8_t, 4> kZero{};
  return {.bits = IpAddress::from_v4(kZero).bytes(), .length = Prefix::kMappedLength};
}

Opening cidr_opening(const CidrSelector& selector, std::uint8_t bit) {
  Opening opening{.bit = bit, .prefix = to_bits(selector.cidr), .except = {}};
  for (const Prefix& except : selector.except) opening.except.push_back(to_bits(except));
  if (!selector.cidr.is_v4() && opening.prefix.contains(all_ipv4()))
    opening.except.push_back(all_ipv4());
  return opening;
}

BitPrefix port_block(std::uint8_t protocol, std::uint32_t first, unsigned length) {
  BitPrefix block{.bits = {}, .length = static_cast<std::uint8_t>(16 + length)};
  block.bits[1] = protocol;
  block.bits[2] = static_cast<std::uint8_t>(first >> 8);
  block.bits[3] = static_cast<std::uint8_t>(first & 0xff);
  return block;
}

// The aligned blocks of powers of two that make up the ports of a set.
void append_port_openings(const PortSet& ports, std::uint8_t bit, std::vector<Opening>& openings) {
  if (ports.is_everything()) {
    openings.push_back({.bit = bit,
                        .prefix = {},
                        .except = {port_block(kTcp, kEncryptedDnsPort, 16),
                                   port_block(kUdp, kEncryptedDnsPort, 16)}});
  }
  for (const PortRange& range : ports.ranges()) {
    const std::uint32_t end = range.last + 1U;
    for (std::uint32_t first = range.first; first < end;) {
      unsigned length = 16;
      std::uint32_t size = 1;
      while (length > 0 && first % (size * 2) == 0 && first + size * 2 <= end) {
        size *= 2;
        --length;
      }
      openings.push_back(
          {.bit = bit, .prefix = port_block(range.protocol, first, length), .except = {}});
      first += size;
    }
  }
}

}  // namespace

// Makes one CompiledPolicy; kept apart so that a failure leaves nothing half done.
class Compiler {
 public:
  Compiler(const Allocations& allocations, const MapIndices& indices) : allocations_(allocations) {
    policy_.indices_ = indices;
  }

  std::expected<void, std::string> add(const WorkloadSpec& spec) {
    const auto id = allocations_.workload_id(spec.name);
    if (!id) {
      return std::unexpected("workload \"" + spec.name + "\": more than " +
                             std::to_string(MG_MAX_WORKLOADS - 1) +
                             " workloads, counting those of the policy in force");
    }
    CompiledWorkload workload{.id = *id,
                              .name = spec.name,
                              .cgroup = spec.cgroup,
                              .mode = spec.mode,
                              .on_gate_timeout = spec.on_gate_timeout,
                              .on_revoke = spec.on_revoke,
                              .on_denied_name = spec.on_denied_name,
                              .allow_loopback = spec.allow_loopback,
                              .resolvers = spec.resolvers,
                              .egress_rules = spec.egress.size(),
                              .prefixes = {},
                              .ports = {},
                              .matcher = nullptr};
    policy_.used_[spec.name].id = *id;
    const auto bits = take_bits(spec);
    if (!bits) return std::unexpected(bits.error());
    workload.prefixes = compile_prefixes(spec, *bits);
    workload.ports = compile_ports(spec, *bits);
    workload.matcher = compile_names(spec, *bits);
    policy_.workloads_.emplace(*id, std::move(workload));
    return {};
  }

  std::expected<void, std::string> check_sizes(const MapSizes& sizes) const {
    std::size_t prefixes = 0;
    std::size_t ports = 0;
    for (const auto& [id, workload] : policy_.workloads_) {
      prefixes += workload.prefixes.size();
      ports += workload.ports.size();
    }
    return check_row_counts(prefixes, ports, sizes);
  }

  CompiledPolicy finish(Allocations& allocations) && {
    allocations = std::move(allocations_);
    return std::move(policy_);
  }

 private:
  using Bits = std::vector<std::uint8_t>;  // by egress rule

  std::expected<Bits, std::string> take_bits(const WorkloadSpec& spec) {
    Bits bits;
    Allocations::Workload& used = policy_.used_[spec.name];
    for (const EgressRule& rule : spec.egress) {
      const std::string text = rule.ports.to_string();
      const auto bit = allocations_.port_set_bit(spec.name, text);
      if (!bit) {
        return std::unexpected("workload \"" + spec.name + "\": more than " +
                               std::to_string(MG_MAX_PORT_SETS) +
                               " different port sets, counting those of the policy in force");
      }
      used.port_sets.emplace(text, *bit);
      bits.push_back(*bit);
    }
    return bits;
  }

  static LpmTable compile_prefixes(const WorkloadSpec& spec, const Bits& bits) {
    std::vector<Opening> openings;
    for (std::size_t i = 0; i < spec.egress.size(); ++i) {
      for (const CidrSelector& selector : spec.egress[i].to_cidrs)
        openings.push_back(cidr_opening(selector, bits[i]));
    }
    return TableBuilder(openings).build();
  }

  static LpmTable compile_ports(const WorkloadSpec& spec, const Bits& bits) {
    std::vector<Opening> openings;
    std::uint64_t done = 0;
    for (std::size_t i = 0; i < spec.egress.size(); ++i) {
      const std::uint64_t mask = std::uint64_t{1} << bits[i];
      if ((done & mask) == 0) append_port_openings(spec.egress[i].ports, bits[i], openings);
      done |= mask;
    }
    return TableBuilder(openings).build();
  }

  static std::shared_ptr<const NameMatcher> compile_names(const WorkloadSpec& spec,
                                                          const Bits& bits) {
    auto matcher = std::make_shared<NameMatcher>();
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < spec.egress.size(); ++i, ++rank) {
      const std::uint64_t mask = std::uint64_t{1} << bits[i];
      for (const NameSelector& selector : spec.egress[i].to_fqdns)
        matcher->add(selector, rank, mask);
    }
    for (const NameSelector& selector : spec.dns) matcher->add(selector, rank++, 0);
    return matcher;
  }

  Allocations allocations_;
  CompiledPolicy policy_;
};

const CompiledWorkload* CompiledPolicy::find_workload(std::string_view name) const {
  const auto used = used_.find(name);
  return used == used_.end() ? nullptr : &workloads_.at(used->second.id);
}

NameMatch CompiledPolicy::match(std::uint32_t workload, std::string_view name) const {
  const auto found = workloads_.find(workload);
  if (found == workloads_.end()) return {};
  const NameMatcher::Match match = found->second.matcher->match(name);
  if (match.rank == NameMatcher::Match::kNone) return {};
  const std::size_t egress_rules = found->second.egress_rules;
  const RuleReference rule =
      match.rank < egress_rules
          ? RuleReference{RuleReference::List::kEgress, match.rank}
          : RuleReference{RuleReference::List::kDns, match.rank - egress_rules};
  return {.resolvable = true, .port_sets = match.port_sets, .rule = rule};
}

std::vector<Row> CompiledPolicy::rows() const {
  std::vector<Row> rows;
  for (const auto& [id, workload] : workloads_) {
    rows.push_back({workload_key(indices_, id), workload_value(verdict_settings(workload))});
    append_rows(prefix_rows(indices_, id), workload.prefixes, rows);
    append_rows(port_rows(indices_, id), workload.ports, rows);
  }
  return rows;
}

std::expected<CompiledPolicy, std::string> compile(const Spec& spec, Allocations& allocations,
                                                   const MapIndices& indices) {
  Compiler compiler(allocations, indices);
  for (const WorkloadSpec& workload : spec.workloads) {
    if (const auto added = compiler.add(workload); !added) return std::unexpected(added.error());
  }
  if (const auto fits = compiler.check_sizes(spec.node.maps); !fits)
    return std::unexpected(fits.error());
  return std::move(compiler).finish(allocations);
}

}  // namespace mapgate::policy
