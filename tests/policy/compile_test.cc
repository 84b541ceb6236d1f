// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/compile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "agent/policy/reload.h"
#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

constexpr MapIndices kIndices = {.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3};

Spec parse(std::string_view yaml) {
  auto spec = parse_spec(yaml, SpecFormat::kYaml, "test.yaml");
  if (!spec) {
    ADD_FAILURE() << spec.error().front().to_string();
    return {};
  }
  return *std::move(spec);
}

Spec one_workload(std::string_view egress) {
  return parse(
      "formatVersion: 1\npolicy: {workloads: [{name: web, selector: {cgroup: /web}, egress: " +
      std::string(egress) + "}]}");
}

CompiledPolicy compiled(const Spec& spec, Allocations& allocations) {
  auto policy = compile(spec, allocations, kIndices);
  if (!policy) {
    ADD_FAILURE() << policy.error();
    return {};
  }
  return *std::move(policy);
}

CompiledPolicy compiled(std::string_view egress) {
  Allocations allocations;
  return compiled(one_workload(egress), allocations);
}

using Table = std::map<std::string, std::uint64_t>;

Table prefixes(const CompiledPolicy& policy) {
  Table table;
  for (const LpmNode& node : policy.find_workload("web")->prefixes) {
    table[IpAddress(node.prefix.bits).to_string() + "/" + std::to_string(node.prefix.length)] =
        node.port_sets;
  }
  return table;
}

Table ports(const CompiledPolicy& policy) {
  Table table;
  for (const LpmNode& node : policy.find_workload("web")->ports) {
    table[std::to_string(node.prefix.bits[1]) + ":" +
          std::to_string(node.prefix.bits[2] * 256 + node.prefix.bits[3]) + "/" +
          std::to_string(node.prefix.length)] = node.port_sets;
  }
  return table;
}

TEST(Compile, RowsHaveTheLayoutOfTheMaps) {
  Allocations allocations;
  ASSERT_TRUE(allocations.restore_workload("other", 1));
  const Spec spec = one_workload("[{toCIDR: [10.0.0.0/8], toPorts: [{port: 443, protocol: TCP}]}]");
  const std::vector<Row> rows = compiled(spec, allocations).rows();
  ASSERT_EQ(rows.size(), 3U);

  const mg_workload settings = {.mode = MG_MODE_ENFORCE, .flags = MG_WORKLOAD_ALLOW_LOOPBACK};
  EXPECT_EQ(rows[0].key, maps::RowKey::of(3, std::uint32_t{2}));
  EXPECT_EQ(rows[0].value, maps::row_value(settings));

  const mg_prefix_key prefix = {.prefixlen = 32 + 96 + 8,
                                .workload = 2,
                                .address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 0}};
  EXPECT_EQ(rows[1].key, maps::RowKey::of(1, prefix));
  EXPECT_EQ(rows[1].value, maps::row_value(mg_port_sets{.port_sets = 1}));

  const mg_port_key port = {.prefixlen = 64,
                            .workload = 2,
                            .protocol = __builtin_bswap16(6),
                            .port = __builtin_bswap16(443)};
  EXPECT_EQ(rows[2].key, maps::RowKey::of(2, port));
  EXPECT_EQ(rows[2].value, maps::row_value(mg_port_sets{.port_sets = 1}));
}

TEST(Compile, AddressKeysAreV4Mapped) {
  const maps::RowKey key = address_key(kIndices, 7, IpAddress::parse("192.0.2.1").value());
  const mg_address_key expected = {
      .workload = 7, .address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1}};
  EXPECT_EQ(key, maps::RowKey::of(0, expected));
}

TEST(Compile, ModeAndLoopbackAreInTheWorkloadRow) {
  Allocations allocations;
  const Spec spec = parse(
      "formatVersion: 1\npolicy: {workloads: [{name: web, selector: {cgroup: /web}, mode: audit, "
      "allowLoopback: false}]}");
  const std::vector<Row> rows = compiled(spec, allocations).rows();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].value, maps::row_value(mg_workload{.mode = MG_MODE_AUDIT, .flags = 0}));
}

TEST(Compile, ANodeHoldsTheBitsOfEveryRuleThatCoversIt) {
  const CompiledPolicy policy = compiled(
      "[{toCIDR: [10.0.0.0/8], toPorts: [{port: 1}]}, {toCIDR: [10.9.0.0/16], toPorts: [{port: "
      "2}]},"
      " {toCIDRSet: [{cidr: 0.0.0.0/0, except: [10.9.1.0/24]}], toPorts: [{port: 3}]}]");
  EXPECT_EQ(
      prefixes(policy),
      (Table{{"0.0.0.0/96", 4}, {"10.0.0.0/104", 5}, {"10.9.0.0/112", 7}, {"10.9.1.0/120", 3}}));
}

TEST(Compile, AnExceptionOfOneRuleDoesNotCloseAnother) {
  EXPECT_EQ(
      prefixes(compiled(
          "[{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.9.0.0/16, 10.9.9.0/24, 10.9.0.0/16]}]},"
          " {toCIDR: [10.9.9.0/24]}]")),
      (Table{{"10.0.0.0/104", 1}, {"10.9.0.0/112", 0}, {"10.9.9.0/120", 1}}));
}

TEST(Compile, AllOfIpv6DoesNotOpenIpv4) {
  EXPECT_EQ(prefixes(compiled("[{toCIDR: ['::/0']}]")), (Table{{"::/0", 1}, {"0.0.0.0/96", 0}}));
  EXPECT_EQ(prefixes(compiled("[{toCIDR: ['::/0', 10.0.0.0/8]}]")),
            (Table{{"::/0", 1}, {"0.0.0.0/96", 0}, {"10.0.0.0/104", 1}}));
  EXPECT_EQ(prefixes(compiled("[{toCIDR: ['::/0', 0.0.0.0/0]}]")),
            (Table{{"::/0", 1}, {"0.0.0.0/96", 1}}));
  EXPECT_EQ(prefixes(compiled("[{toCIDR: ['2001:db8::/32']}]")), (Table{{"2001:db8::/32", 1}}));
}

TEST(Compile, RangesAreSplitInAlignedBlocks) {
  EXPECT_EQ(
      ports(compiled("[{toCIDR: [10.0.0.0/8], toPorts: [{port: 5, endPort: 16, protocol: TCP}]}]")),
      (Table{{"6:5/32", 1}, {"6:6/31", 1}, {"6:8/29", 1}, {"6:16/32", 1}}));
  EXPECT_EQ(
      ports(compiled(
          "[{toCIDR: [10.0.0.0/8], toPorts: [{port: 32768, endPort: 65535, protocol: UDP}]}]")),
      (Table{{"17:32768/17", 1}}));
}

TEST(Compile, NoPortsAreAllProtocols) {
  EXPECT_EQ(ports(compiled("[{toCIDR: [10.0.0.0/8]}, {toCIDR: [11.0.0.0/8], toPorts: [{port: 80, "
                           "protocol: TCP}]}]")),
            (Table{{"0:0/0", 1}, {"6:80/32", 3}, {"6:853/32", 0}, {"17:853/32", 0}}));
}

TEST(Compile, EncryptedDnsIsOpenOnlyWhereARuleNamesItsPort) {
  EXPECT_EQ(ports(compiled("[{toCIDR: [10.0.0.0/8]}, {toCIDR: [11.0.0.0/8], toPorts: [{port: 853, "
                           "protocol: TCP}]}]")),
            (Table{{"0:0/0", 1}, {"6:853/32", 2}, {"17:853/32", 0}}));
}

TEST(Compile, IcmpTypesAreThePortsOfTheirProtocol) {
  EXPECT_EQ(
      ports(compiled(
          "[{toCIDR: [10.0.0.0/8], icmps: [{fields: [{type: 8}, {type: 128, family: IPv6}]}]}]")),
      (Table{{"1:8/32", 1}, {"58:128/32", 1}}));
}

TEST(Compile, EqualPortSetsShareABit) {
  const CompiledPolicy policy = compiled(
      "[{toCIDR: [10.0.0.0/8], toPorts: [{port: 1, protocol: TCP}, {port: 2, protocol: TCP}]},"
      " {toCIDR: [11.0.0.0/8], toPorts: [{port: 1, endPort: 2, protocol: TCP}]}]");
  EXPECT_EQ(prefixes(policy), (Table{{"10.0.0.0/104", 1}, {"11.0.0.0/104", 1}}));
}

TEST(Compile, AFailureTakesNothingFromTheAllocations) {
  Allocations allocations;
  ASSERT_EQ(allocations.workload_id("web"), 1U);
  for (int i = 0; i < MG_MAX_PORT_SETS - 1; ++i)
    ASSERT_TRUE(allocations.port_set_bit("web", "old " + std::to_string(i)));
  const Allocations before = allocations;
  const auto policy = compile(
      one_workload("[{toCIDR: [10.0.0.0/8]}, {toCIDR: [10.0.0.0/8], toPorts: [{port: 1}]}]"),
      allocations, kIndices);
  ASSERT_FALSE(policy);
  EXPECT_NE(policy.error().find("port sets"), std::string::npos) << policy.error();
  EXPECT_EQ(allocations, before);
}

TEST(Compile, MoreRowsThanTheMapHoldsAreRefused) {
  Allocations allocations;
  Spec spec = one_workload("[{toCIDR: [10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8]}]");
  spec.node.maps.prefixes = 2;
  const auto policy = compile(spec, allocations, kIndices);
  ASSERT_FALSE(policy);
  EXPECT_NE(policy.error().find("node.maps.prefixes"), std::string::npos) << policy.error();
  EXPECT_EQ(allocations, Allocations());
}

TEST(Match, GivesTheBitsOfAllRulesAndTheFirstRule) {
  const CompiledPolicy policy = compiled(
      "[{toCIDR: [10.0.0.0/8]}, {toFQDNs: [{matchPattern: '*.example.com'}], toPorts: [{port: "
      "80}]},"
      " {toFQDNs: [{matchName: API.example.com.}, {matchName: b.org}], toPorts: [{port: 443}]},"
      " {toFQDNs: [{matchName: api.example.com}]}]");
  const std::uint32_t id = policy.find_workload("web")->id;
  const NameMatch api = policy.match(id, "api.example.com");
  EXPECT_TRUE(api.resolvable);
  EXPECT_EQ(api.port_sets, 0b111U);
  EXPECT_EQ(api.rule, (RuleReference{RuleReference::List::kEgress, 1}));
  EXPECT_EQ(policy.match(id, "www.example.com").port_sets, 0b010U);
  EXPECT_EQ(policy.match(id, "b.org").rule, (RuleReference{RuleReference::List::kEgress, 2}));
}

TEST(Match, RefusesWhatNoRuleNames) {
  const CompiledPolicy policy =
      compiled("[{toFQDNs: [{matchPattern: '*.google.com'}, {matchName: google.com}]}]");
  for (std::string_view name :
       {"evilgoogle.com", "google.com.evil.org", "a.b.google.com", "com", ""}) {
    const NameMatch match = policy.match(1, name);
    EXPECT_FALSE(match.resolvable) << name;
    EXPECT_EQ(match.port_sets, 0U);
    EXPECT_FALSE(match.rule);
  }
  EXPECT_FALSE(policy.match(2, "google.com").resolvable);
  EXPECT_FALSE(CompiledPolicy().match(1, "google.com").resolvable);
}

TEST(Match, DnsEntriesMayBeResolvedAndOpenNothing) {
  Allocations allocations;
  const CompiledPolicy policy =
      compiled(parse("formatVersion: 1\npolicy: {workloads: [{name: web, selector: {cgroup: /web},"
                     " egress: [{toFQDNs: [{matchName: a.org}]}],"
                     " dns: [{matchName: b.org}, {matchPattern: '*'}]}]}"),
               allocations);
  EXPECT_EQ(policy.match(1, "a.org").rule, (RuleReference{RuleReference::List::kEgress, 0}));
  EXPECT_EQ(policy.match(1, "a.org").port_sets, 1U);
  const NameMatch other = policy.match(1, "b.org");
  EXPECT_TRUE(other.resolvable);
  EXPECT_EQ(other.port_sets, 0U);
  EXPECT_EQ(other.rule, (RuleReference{RuleReference::List::kDns, 0}));
  EXPECT_EQ(policy.match(1, "").rule, (RuleReference{RuleReference::List::kDns, 1}));
}

TEST(Match, FindsPatternsWhateverLabelsAreLiteral) {
  const CompiledPolicy policy = compiled(
      "[{toFQDNs: [{matchPattern: 'a.*'}], toPorts: [{port: 1}]}, {toFQDNs: [{matchPattern: "
      "'**.x*.c'}], toPorts: "
      "[{port: 2}]}, {toFQDNs: [{matchPattern: 'lit.c'}], toPorts: [{port: 3}]}]");
  EXPECT_EQ(policy.match(1, "a.c").port_sets, 1U);
  EXPECT_EQ(policy.match(1, "q.r.xy.c").port_sets, 2U);
  EXPECT_EQ(policy.match(1, "lit.c").port_sets, 4U);
  EXPECT_EQ(policy.match(1, "z.lit.c").port_sets, 0U);
}

}  // namespace
}  // namespace mapgate::policy
