// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/reload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

constexpr MapIndices kIndices = {.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3};
constexpr std::array<std::string_view, 3> kWorkloads = {"web", "db", "mail"};

// What a packet or a connection is judged by.
struct Probe {
  std::string workload;
  IpAddress address;
  std::uint8_t protocol;
  std::uint16_t port;
};

// An address that the workload learned before the reload began.
struct Learned {
  std::string workload;
  IpAddress address;
  std::string name;
};

// The maps, with look-ups as the kernel does them. Knows nothing of agent/policy but the layout of
// rows.
class SimulatedMaps {
 public:
  void write(const Row& row) { rows_[text(row.key)] = row; }
  void erase(const maps::RowKey& key) { rows_.erase(text(key)); }

  [[nodiscard]] bool allows(std::uint32_t workload, const Probe& probe) const {
    const mg_workload settings = settings_of(workload);
    if (settings.mode == MG_MODE_AUDIT) return true;
    if (settings.mode != MG_MODE_ENFORCE) return false;
    std::array<std::uint8_t, 20> address = prefix_bytes(workload);
    std::ranges::copy(probe.address.bytes(), address.begin() + 4);
    std::array<std::uint8_t, 8> port = {0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        probe.protocol,
                                        static_cast<std::uint8_t>(probe.port >> 8),
                                        static_cast<std::uint8_t>(probe.port & 0xff)};
    std::memcpy(port.data(), &workload, sizeof workload);
    const std::uint64_t learned = value_of(address_key(kIndices, workload, probe.address));
    return ((learned | longest_match(kIndices.prefixes, address)) &
            longest_match(kIndices.ports, port)) != 0;
  }
  [[nodiscard]] bool allows_loopback(std::uint32_t workload) const {
    const mg_workload settings = settings_of(workload);
    return settings.mode == MG_MODE_AUDIT ||
           (settings.mode == MG_MODE_ENFORCE && (settings.flags & MG_WORKLOAD_ALLOW_LOOPBACK) != 0);
  }
  // All but learned addresses.
  [[nodiscard]] std::map<std::string, std::string> static_rows() const {
    std::map<std::string, std::string> result;
    for (const auto& [key, row] : rows_) {
      if (row.key.map() != kIndices.addresses) result[key] = text(row.value.bytes());
    }
    return result;
  }

  static std::string text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static std::string text(const maps::RowKey& key) {
    return static_cast<char>(key.map()) + text(key.bytes());
  }

 private:
  static std::array<std::uint8_t, 20> prefix_bytes(std::uint32_t workload) {
    std::array<std::uint8_t, 20> bytes{};
    std::memcpy(bytes.data(), &workload, sizeof workload);
    return bytes;
  }
  [[nodiscard]] mg_workload settings_of(std::uint32_t workload) const {
    mg_workload settings{};  // an array's elements are zero at first
    const auto found = rows_.find(text(maps::RowKey::of(kIndices.workloads, workload)));
    if (found != rows_.end()) std::memcpy(&settings, found->second.value.data(), sizeof settings);
    return settings;
  }
  [[nodiscard]] std::uint64_t value_of(const maps::RowKey& key) const {
    std::uint64_t value = 0;
    const auto found = rows_.find(text(key));
    if (found != rows_.end()) std::memcpy(&value, found->second.value.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::uint64_t longest_match(maps::MapIndex map,
                                            std::span<const std::uint8_t> data) const {
    std::uint32_t best = 0;
    std::uint64_t value = 0;
    for (const auto& [key, row] : rows_) {
      if (row.key.map() != map) continue;
      std::uint32_t length = 0;
      std::memcpy(&length, row.key.bytes().data(), sizeof length);
      if (length < best || !shares_bits(row.key.bytes().subspan(4), data, length)) continue;
      best = length;
      std::memcpy(&value, row.value.data(), sizeof value);
    }
    return value;
  }
  static bool shares_bits(std::span<const std::byte> a, std::span<const std::uint8_t> b,
                          std::uint32_t length) {
    const std::uint32_t whole = length / 8;
    if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
    if (length % 8 == 0) return true;
    const unsigned difference = static_cast<unsigned>(a[whole]) ^ b[whole];
    return difference >> (8 - length % 8) == 0;
  }

  std::map<std::string, Row> rows_;
};

// What a spec says, straight from the spec.
class Oracle {
 public:
  static bool allows(const Spec& spec, const Probe& probe, const std::vector<Learned>& learned) {
    const WorkloadSpec* workload = find(spec, probe.workload);
    if (workload == nullptr) return false;
    if (workload->mode == Mode::kAudit) return true;
    return std::ranges::any_of(workload->egress, [&](const EgressRule& rule) {
      return rule.ports.contains(probe.protocol, probe.port) &&
             (by_cidr(rule, probe) || by_name(rule, probe, learned));
    });
  }
  static bool allows_loopback(const Spec& spec, std::string_view name) {
    const WorkloadSpec* workload = find(spec, name);
    return workload != nullptr && (workload->mode == Mode::kAudit || workload->allow_loopback);
  }

 private:
  static const WorkloadSpec* find(const Spec& spec, std::string_view name) {
    const auto found = std::ranges::find(spec.workloads, name, &WorkloadSpec::name);
    return found == spec.workloads.end() ? nullptr : &*found;
  }
  static bool by_cidr(const EgressRule& rule, const Probe& probe) {
    return std::ranges::any_of(rule.to_cidrs, [&](const CidrSelector& selector) {
      return selector.cidr.contains(probe.address) &&
             std::ranges::none_of(selector.except, [&](const Prefix& except) {
               return except.contains(probe.address);
             });
    });
  }
  static bool by_name(const EgressRule& rule, const Probe& probe,
                      const std::vector<Learned>& learned) {
    return std::ranges::any_of(learned, [&](const Learned& entry) {
      return entry.workload == probe.workload && entry.address == probe.address &&
             std::ranges::any_of(rule.to_fqdns, [&](const NameSelector& selector) {
               const auto* pattern = std::get_if<NamePattern>(&selector);
               return pattern != nullptr ? pattern->matches(entry.name)
                                         : std::get<std::string>(selector) == entry.name;
             });
    });
  }
};

// Draws from few prefixes, ports and names, so that they nest and meet.
class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }
  template <typename Items>
  void shuffle(Items& items) {
    std::ranges::shuffle(items, random_);
  }

  Spec spec() {
    Spec result;
    for (std::string_view name : kWorkloads) {
      if (!chance(4)) result.workloads.push_back(workload(std::string(name)));
    }
    return result;
  }
  // A spec as an editor would leave it: most of it as before.
  Spec edited(const Spec& before) {
    if (chance(3)) return spec();
    Spec result = before;
    for (WorkloadSpec& item : result.workloads) {
      if (chance(2)) continue;
      if (!item.egress.empty() && chance(2)) item.egress.erase(item.egress.begin());
      if (chance(2)) item.egress.push_back(rule());
      if (chance(4)) item.mode = item.mode == Mode::kAudit ? Mode::kEnforce : Mode::kAudit;
      if (chance(4)) item.allow_loopback = !item.allow_loopback;
    }
    return result;
  }
  Probe probe() {
    return {.workload = std::string(kWorkloads[below(kWorkloads.size())]),
            .address = address(),
            .protocol = chance(3) ? kUdp : kTcp,
            .port = static_cast<std::uint16_t>(below(18))};
  }
  Learned learned() {
    return {.workload = std::string(kWorkloads[below(kWorkloads.size())]),
            .address = address(),
            .name = name()};
  }

 private:
  WorkloadSpec workload(std::string name) {
    WorkloadSpec result;
    result.cgroup = "/" + name;
    result.name = std::move(name);
    result.mode = chance(6) ? Mode::kAudit : Mode::kEnforce;
    result.allow_loopback = chance(2);
    for (std::size_t i = below(5); i > 0; --i) result.egress.push_back(rule());
    return result;
  }
  EgressRule rule() {
    EgressRule result;
    result.ports = ports();
    for (std::size_t i = below(3); i > 0; --i) {
      CidrSelector selector{.cidr = prefix(), .except = {}};
      for (std::size_t j = below(4); j > 0; --j) {
        const Prefix except = prefix();
        if (selector.cidr != except && selector.cidr.contains(except))
          selector.except.push_back(except);
      }
      result.to_cidrs.push_back(std::move(selector));
    }
    if (chance(2)) result.to_fqdns.emplace_back(name());
    if (chance(4))
      result.to_fqdns.emplace_back(NamePattern::parse(chance(2) ? "*" : "a*.org").value());
    return result;
  }
  PortSet ports() {
    if (chance(4)) return PortSet::everything();
    std::vector<PortRange> ranges;
    for (std::size_t i = 1 + below(2); i > 0; --i) {
      const auto first = static_cast<std::uint16_t>(1 + below(16));
      const auto last = static_cast<std::uint16_t>(first + below(17 - first));
      ranges.push_back({.protocol = chance(3) ? kUdp : kTcp, .first = first, .last = last});
    }
    return PortSet(ranges);
  }
  Prefix prefix() {
    static constexpr std::array<std::string_view, 16> kPrefixes = {
        "0.0.0.0/0",    "10.0.0.0/8",    "10.0.0.0/9",    "10.128.0.0/9",    "10.9.0.0/16",
        "10.9.9.0/24",  "10.9.9.9/32",   "10.9.9.8/31",   "192.0.2.0/24",    "::/0",
        "::/1",         "2001:db8::/32", "2001:db8::/64", "2001:db8::1/128", "::/64",
        "10.200.0.0/16"};
    return Prefix::parse(kPrefixes[below(kPrefixes.size())]).value();
  }
  IpAddress address() {
    static constexpr std::array<std::string_view, 14> kAddresses = {
        "10.9.9.9",    "10.9.9.8",      "10.9.9.7",  "10.9.1.1", "10.1.1.1",
        "10.200.1.1",  "10.129.1.1",    "192.0.2.1", "8.8.8.8",  "2001:db8::1",
        "2001:db8::2", "2001:db8:1::1", "::1",       "f000::1"};
    return IpAddress::parse(kAddresses[below(kAddresses.size())]).value();
  }
  std::string name() {
    static constexpr std::array<std::string_view, 4> kNames = {"a.org", "ab.org", "b.org",
                                                               "c.a.org"};
    return std::string(kNames[below(kNames.size())]);
  }

  std::mt19937 random_;
};

// One node that goes from spec to spec.
class Reloads {
 public:
  explicit Reloads(unsigned seed) : generator_(seed) {
    for (int i = 0; i < 40; ++i) probes_.push_back(generator_.probe());
    for (int i = 0; i < 8; ++i) learned_.push_back(generator_.learned());
  }

  void run() {
    for (int i = 0; i < 4 && !testing::Test::HasFatalFailure(); ++i)
      reload(generator_.edited(spec_));
  }

 private:
  using Change = std::pair<maps::RowKey, std::optional<maps::RowValue>>;  // no value: erase

  void reload(const Spec& next) {
    auto compiled = compile(next, allocations_, kIndices);
    ASSERT_TRUE(compiled) << compiled.error();
    const auto plan = plan_reload(policy_, *compiled, {});
    ASSERT_TRUE(plan) << plan.error();
    next_spec_ = &next;
    next_policy_ = &*compiled;

    if (generator_.chance(4)) return give_up(*plan);
    apply(changes(plan->split));
    apply(changes(plan->widen, Bits::kBoth));
    apply(changes(plan->narrow, Bits::kNew));
    apply(changes(plan->merge));
    if (testing::Test::HasFatalFailure()) return;
    spec_ = next;
    policy_ = *std::move(compiled);
    allocations_.release_unused(policy_.used_allocations());
    check_finished();
  }

  // A part of the first phases, and then the way back.
  void give_up(const ReloadPlan& plan) {
    const auto way_back = plan_reload(*next_policy_, policy_, {});
    ASSERT_TRUE(way_back) << way_back.error();
    std::vector<Change> split = changes(plan.split);
    std::vector<Change> widen = changes(plan.widen, Bits::kBoth);
    std::vector<Change>& last = generator_.chance(2) ? split : widen;
    generator_.shuffle(last);
    last.resize(generator_.below(last.size() + 1));
    apply(split);
    if (&last == &widen) apply(widen);
    next_policy_ = &policy_;  // for the learned addresses
    apply(changes(way_back->narrow, Bits::kNew));
    apply(changes(way_back->merge));
    if (testing::Test::HasFatalFailure()) return;
    allocations_.release_unused(policy_.used_allocations());
    check_finished();
  }

  enum class Bits { kUntouched, kBoth, kNew };

  std::vector<Change> changes(const ReloadPhase& phase, Bits learned = Bits::kUntouched) {
    std::vector<Change> result;
    for (const Row& row : phase.write) result.emplace_back(row.key, row.value);
    for (const maps::RowKey& key : phase.erase) result.emplace_back(key, std::nullopt);
    if (learned == Bits::kUntouched) return result;
    std::map<std::pair<std::uint32_t, IpAddress>, std::uint64_t> values;
    for (const Learned& entry : learned_) {
      const auto workload = allocations_.workloads().find(entry.workload);
      if (workload == allocations_.workloads().end()) continue;
      const std::uint32_t id = workload->second.id;
      std::uint64_t& value = values[{id, entry.address}];
      value |= next_policy_->match(id, entry.name).port_sets;
      if (learned == Bits::kBoth) value |= policy_.match(id, entry.name).port_sets;
    }
    for (const auto& [key, value] : values) {
      const maps::RowKey row_key = address_key(kIndices, key.first, key.second);
      result.emplace_back(row_key,
                          value == 0 ? std::nullopt : std::optional(port_sets_value(value)));
    }
    return result;
  }

  void apply(std::vector<Change> changes) {
    generator_.shuffle(changes);
    for (const auto& [key, value] : changes) {
      if (testing::Test::HasFatalFailure()) return;
      if (value) {
        maps_.write({key, *value});
      } else {
        maps_.erase(key);
      }
      check_on_the_way();
    }
  }

  void check_on_the_way() {
    for (const Probe& probe : probes_) {
      const bool before = Oracle::allows(spec_, probe, learned_);
      const bool after = Oracle::allows(*next_spec_, probe, learned_);
      check(maps_.allows(id_of(probe.workload), probe), before, after,
            probe.workload + " " + probe.address.to_string());
    }
    for (std::string_view name : kWorkloads) {
      check(maps_.allows_loopback(id_of(name)), Oracle::allows_loopback(spec_, name),
            Oracle::allows_loopback(*next_spec_, name), "loopback");
    }
  }

  static void check(bool allowed, bool before, bool after, const std::string& what) {
    ASSERT_TRUE(allowed || !before || !after)
        << what << ": both policies allow it, the maps do not";
    ASSERT_TRUE(!allowed || before || after) << what << ": neither policy allows it, the maps do";
  }

  void check_finished() {
    SimulatedMaps fresh;
    for (const Row& row : policy_.rows()) fresh.write(row);
    ASSERT_EQ(maps_.static_rows(), fresh.static_rows());
    for (const Probe& probe : probes_) {
      ASSERT_EQ(maps_.allows(id_of(probe.workload), probe), Oracle::allows(spec_, probe, learned_))
          << probe.workload << " " << probe.address.to_string() << " " << int{probe.protocol} << ":"
          << probe.port;
    }
  }

  std::uint32_t id_of(std::string_view workload) const {
    const auto found = allocations_.workloads().find(workload);
    return found == allocations_.workloads().end() ? 0 : found->second.id;
  }

  Generator generator_;
  std::vector<Probe> probes_;
  std::vector<Learned> learned_;
  Allocations allocations_;
  SimulatedMaps maps_;
  Spec spec_;
  CompiledPolicy policy_;
  const Spec* next_spec_ = nullptr;
  const CompiledPolicy* next_policy_ = nullptr;
};

TEST(Reload, NeverDeniesWhatBothAllowNorAllowsWhatNeitherAllows) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Reloads(seed).run();
    if (HasFatalFailure()) return;
  }
}

CompiledPolicy compiled(std::string_view workloads, Allocations& allocations) {
  const std::string text =
      "{formatVersion: 1, policy: {workloads: [" + std::string(workloads) + "]}}";
  const auto spec = parse_spec(text, SpecFormat::kYaml, "test.yaml");
  return compile(spec.value(), allocations, kIndices).value();
}

TEST(Reload, OfTheSamePolicyChangesNothing) {
  Allocations allocations;
  const auto policy = compiled(
      "{name: web, selector: {cgroup: /web}, egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: "
      "[10.9.0.0/16]}]}]}",
      allocations);
  const auto plan = plan_reload(policy, policy, {}).value();
  EXPECT_TRUE(plan.split.empty() && plan.widen.empty() && plan.narrow.empty() &&
              plan.merge.empty());
}

TEST(Reload, WritesOnlyRowsThatDiffer) {
  Allocations allocations;
  const auto from = compiled(
      "{name: web, selector: {cgroup: /web}, egress: [{toCIDR: [10.0.0.0/8, 11.0.0.0/8]}]},"
      "{name: db, selector: {cgroup: /db}, egress: [{toCIDR: [10.0.0.0/8]}]}",
      allocations);
  const auto to = compiled(
      "{name: web, selector: {cgroup: /web}, egress: [{toCIDR: [10.0.0.0/8, 12.0.0.0/8]}]},"
      "{name: db, selector: {cgroup: /db}, egress: [{toCIDR: [10.0.0.0/8]}]}",
      allocations);
  const auto plan = plan_reload(from, to, {}).value();
  EXPECT_TRUE(plan.split.empty() && plan.merge.empty());
  EXPECT_EQ(plan.widen.write.size(), 1U);
  EXPECT_TRUE(plan.widen.erase.empty());
  EXPECT_TRUE(plan.narrow.write.empty());
  EXPECT_EQ(plan.narrow.erase.size(), 1U);
}

TEST(Reload, AuditBeginsWithWidenAndEndsWithNarrow) {
  Allocations allocations;
  const auto enforce =
      compiled("{name: web, selector: {cgroup: /web}, allowLoopback: false}", allocations);
  const auto audit = compiled(
      "{name: web, selector: {cgroup: /web}, allowLoopback: false, mode: audit}", allocations);
  const auto to_audit = plan_reload(enforce, audit, {}).value();
  EXPECT_EQ(to_audit.widen.write.size(), 1U);
  EXPECT_TRUE(to_audit.narrow.empty());
  const auto to_enforce = plan_reload(audit, enforce, {}).value();
  EXPECT_TRUE(to_enforce.widen.empty());
  EXPECT_EQ(to_enforce.narrow.write.size(), 1U);
}

TEST(Reload, OldAndNewRowsMustFitTogether) {
  Allocations allocations;
  const auto from = compiled(
      "{name: web, selector: {cgroup: /web}, egress: [{toCIDR: [10.0.0.0/8, 11.0.0.0/8]}]}",
      allocations);
  const auto to = compiled(
      "{name: web, selector: {cgroup: /web}, egress: [{toCIDR: [12.0.0.0/8, 13.0.0.0/8]}]}",
      allocations);
  MapSizes sizes;
  sizes.prefixes = 4;
  EXPECT_TRUE(plan_reload(from, to, sizes));
  sizes.prefixes = 3;
  const auto plan = plan_reload(from, to, sizes);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().find("old and new rows together"), std::string::npos) << plan.error();
}

}  // namespace
}  // namespace mapgate::policy
