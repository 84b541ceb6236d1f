// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/policy/fixture.h"

namespace mapgate::policy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

Parsed yaml(std::string_view text) {
  return parse_spec(text, SpecFormat::kYaml, "web.yaml");
}
Parsed json(std::string_view text) {
  return parse_spec(text, SpecFormat::kJson, "web.json");
}

Spec accepted(const Parsed& parsed) {
  if (parsed) return *parsed;
  for (const SpecError& error : parsed.error()) ADD_FAILURE() << error.to_string();
  return {};
}

// A whole spec around the inside of one workload, in YAML's flow style on the third line.
std::string workload(std::string_view fields) {
  return "formatVersion: 1\npolicy: {workloads: [\n{name: web, selector: {cgroup: /web}, " +
         std::string(fields) + "}\n]}\n";
}
std::string rule(std::string_view fields) {
  return workload("egress: [{" + std::string(fields) + "}]");
}

constexpr std::string_view kDesignExample = R"(formatVersion: 1
policy:
  workloads:
    - name: web
      selector: {cgroup: /system.slice/web.service}
      mode: enforce                                   # or audit
      onGateTimeout: servfail                         # or release, drop
      onRevoke: destroy
      egress:
        - toFQDNs: [{matchName: api.example.com}, {matchPattern: "*.cdn.example.com"}]
          toPorts: [{port: 443, protocol: TCP}]
        - toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.9.0.0/16]}]
)";

TEST(Spec, TheDesignsExampleParses) {
  const Spec spec = accepted(yaml(kDesignExample));
  ASSERT_THAT(spec.workloads, SizeIs(1));
  const WorkloadSpec& web = spec.workloads[0];
  EXPECT_EQ(web.name, "web");
  EXPECT_EQ(web.cgroup, "/system.slice/web.service");
  EXPECT_EQ(web.mode, Mode::kEnforce);
  EXPECT_EQ(web.on_gate_timeout, GateTimeoutAction::kServfail);
  EXPECT_EQ(web.on_revoke, RevokeAction::kDestroy);
  ASSERT_THAT(web.egress, SizeIs(2));
  EXPECT_EQ(web.egress[0].to_fqdns,
            (std::vector<NameSelector>{"api.example.com",
                                       NamePattern::parse("*.cdn.example.com").value()}));
  EXPECT_EQ(web.egress[0].ports.to_string(), "tcp:443");
  EXPECT_EQ(web.egress[1].to_cidrs,
            (std::vector<CidrSelector>{{.cidr = Prefix::parse("10.0.0.0/8").value(),
                                        .except = {Prefix::parse("10.9.0.0/16").value()}}}));
  EXPECT_TRUE(web.egress[1].ports.is_everything());
}

TEST(Spec, DefaultsAreAsDocumented) {
  const Spec spec = accepted(yaml(workload("")));
  EXPECT_EQ(spec.node.maps.addresses, 65536U);
  EXPECT_EQ(spec.node.maps.prefixes, 16384U);
  EXPECT_EQ(spec.node.maps.ports, 16384U);
  EXPECT_EQ(spec.node.dns.min_ttl, seconds(60));
  EXPECT_EQ(spec.node.dns.max_ttl, seconds(86400));
  EXPECT_EQ(spec.node.dns.grace, seconds(60));
  EXPECT_EQ(spec.node.dns.gate_deadline, seconds(1));
  const WorkloadSpec& web = spec.workloads.at(0);
  EXPECT_EQ(web.mode, Mode::kEnforce);
  EXPECT_EQ(web.on_gate_timeout, GateTimeoutAction::kServfail);
  EXPECT_TRUE(web.allow_loopback);
  EXPECT_THAT(web.egress, SizeIs(0));
  EXPECT_THAT(web.dns, SizeIs(0));
}

TEST(Spec, AuditReleasesUnlessItSaysOtherwise) {
  EXPECT_EQ(accepted(yaml(workload("mode: audit"))).workloads.at(0).on_gate_timeout,
            GateTimeoutAction::kRelease);
  EXPECT_EQ(
      accepted(yaml(workload("onGateTimeout: drop, mode: audit"))).workloads.at(0).on_gate_timeout,
      GateTimeoutAction::kDrop);
}

TEST(Spec, NodeSettingsAreRead) {
  const Spec spec = accepted(yaml(R"(formatVersion: 1
node:
  maps: {addresses: 64, prefixes: 32, ports: 16}
  dns: {minTTL: 5, maxTTL: 24h, grace: 10m, gateDeadline: 250ms, upstreamTimeout: 2s, maxHeldAnswers: 7,
        maxAddressesPerName: 8, maxAddressesPerWorkload: 9}
policy: {workloads: []}
)"));
  EXPECT_EQ(spec.node.maps, (MapSizes{.addresses = 64, .prefixes = 32, .ports = 16}));
  EXPECT_EQ(spec.node.dns, (DnsSettings{.min_ttl = seconds(5),
                                        .max_ttl = seconds(86400),
                                        .grace = seconds(600),
                                        .gate_deadline = milliseconds(250),
                                        .upstream_timeout = seconds(2),
                                        .max_held_answers = 7,
                                        .max_addresses_per_name = 8,
                                        .max_addresses_per_workload = 9}));
}

TEST(Spec, JsonAndYamlMeanTheSame) {
  const std::string_view text = R"({
    "formatVersion": 1,
    "policy": {"workloads": [{
      "name": "web", "selector": {"cgroup": "/system.slice/web.service"}, "mode": "enforce",
      "onGateTimeout": "servfail",
      "onRevoke": "destroy",
      "egress": [
        {"toFQDNs": [{"matchName": "api.example.com"}, {"matchPattern": "*.cdn.example.com"}],
         "toPorts": [{"port": 443, "protocol": "TCP"}]},
        {"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}]}]}]}})";
  EXPECT_EQ(accepted(json(text)), accepted(yaml(kDesignExample)));
}

TEST(Spec, PortsAreReadLikeCiliums) {
  const auto ports = [](std::string_view fields) {
    return accepted(yaml(rule("toCIDR: [10.0.0.0/8], " + std::string(fields))))
        .workloads.at(0)
        .egress.at(0)
        .ports.to_string();
  };
  EXPECT_EQ(ports("toPorts: [{port: 443}]"), "tcp:443,udp:443,sctp:443");
  EXPECT_EQ(ports("toPorts: [{port: 443, protocol: ANY}]"), "tcp:443,udp:443,sctp:443");
  EXPECT_EQ(ports("toPorts: [{port: '443', protocol: UDP}]"), "udp:443");
  EXPECT_EQ(ports("toPorts: [{port: 8000, endPort: 8080, protocol: SCTP}]"), "sctp:8000-8080");
  EXPECT_EQ(ports("icmps: [{fields: [{type: 8}, {type: EchoReply, family: IPv4}]}]"),
            "icmp:0,icmp:8");
  EXPECT_EQ(ports("icmps: [{fields: [{type: EchoRequest, family: IPv6}]}]"), "icmpv6:128");
  EXPECT_EQ(ports("toPorts: [{port: 80, protocol: TCP}], icmps: [{fields: [{type: 8}]}]"),
            "icmp:8,tcp:80");
}

TEST(Spec, ARangeOpensThePortOfEncryptedDnsOnlyIfARuleNamesItByItself) {
  const auto ports = [](std::string_view list) {
    return accepted(yaml(rule("toCIDR: [10.0.0.0/8], toPorts: " + std::string(list))))
        .workloads.at(0)
        .egress.at(0)
        .ports.to_string();
  };
  EXPECT_EQ(ports("[{port: 1, endPort: 65535, protocol: TCP}]"), "tcp:1-852,tcp:854-65535");
  EXPECT_EQ(ports("[{port: 853, endPort: 900, protocol: UDP}]"), "udp:854-900");
  EXPECT_EQ(ports("[{port: 800, endPort: 853, protocol: UDP}]"), "udp:800-852");
  EXPECT_EQ(ports("[{port: 800, endPort: 900, protocol: SCTP}]"), "sctp:800-900");
  EXPECT_EQ(ports("[{port: 853, protocol: TCP}]"), "tcp:853");
  EXPECT_EQ(ports("[{port: 800, endPort: 900, protocol: TCP}, {port: 853, protocol: TCP}]"),
            "tcp:800-900");
}

TEST(Spec, ResolversAreTheNodesUnlessThePolicyOrTheWorkloadNamesOthers) {
  const auto resolvers = [](std::string_view of_policy, std::string_view of_workload) {
    return accepted(yaml("formatVersion: 1\npolicy:\n" + std::string(of_policy) +
                         "  workloads:\n    - name: web\n      selector: {cgroup: /web}\n" +
                         std::string(of_workload)))
        .workloads.at(0)
        .resolvers;
  };
  const auto one = [](std::string_view prefix, bool system) {
    return ResolverSelector{.system = system, .prefixes = {Prefix::parse(prefix).value()}};
  };
  EXPECT_EQ(resolvers("", ""), ResolverSelector());
  EXPECT_EQ(resolvers("  resolvers: [192.0.2.53]\n", ""), one("192.0.2.53", false));
  EXPECT_EQ(resolvers("  resolvers: [192.0.2.53]\n", "      resolvers: [system]\n"),
            ResolverSelector());
  EXPECT_EQ(resolvers("", "      resolvers: [10.0.0.0/8, system]\n"), one("10.0.0.0/8", true));
}

TEST(Spec, AllFaultsComeAtOnceEachWithItsPlace) {
  EXPECT_THAT(
      faults(yaml(R"(formatVersion: 2
policy:
  workloads:
    - name: web
      selector: {cgroup: /web}
      mode: enforced
      egress:
        - toCIDR: [10.0.0.0/33]
          toPortz: [{port: 443}]
        - toPorts: [{port: 443}]
    - name: web
      selector: {cgroup: web}
)")),
      ElementsAre(
          "web.yaml:1:16: /formatVersion: expected an integer in 1..1",
          "web.yaml:6:13: /policy/workloads/0/mode: \"enforced\" is not one of enforce, audit",
          "web.yaml:8:20: /policy/workloads/0/egress/0/toCIDR/0: \"10.0.0.0/33\" has a prefix "
          "length "
          "that is not in 0..32",
          "web.yaml:9:11: /policy/workloads/0/egress/0/toPortz: unknown field \"toPortz\"; known "
          "here: "
          "toFQDNs, toCIDR, toCIDRSet, toPorts, icmps",
          "web.yaml:10:11: /policy/workloads/0/egress/1: the rule has no destination: toFQDNs, "
          "toCIDR "
          "or toCIDRSet",
          "web.yaml:11:13: /policy/workloads/1/name: the workload name \"web\" is given twice",
          "web.yaml:12:26: /policy/workloads/1/selector/cgroup: \"web\" is not an absolute path "
          "below "
          "the cgroup root"));
}

TEST(Spec, JsonFaultsHaveTheirPlaceToo) {
  EXPECT_THAT(
      faults(json("{\n  \"formatVersion\": \"1\",\n  \"policy\": {\"workloads\": [\n    {\"name\": "
                  "\"w\\u0065b\",\n"
                  "     \"selector\": {\"unit\": 7}, \"a/b~\": [[], {}, -1.5e3]}, 12 , null]},\n "
                  "\"x\": true}")),
      ElementsAre(
          "web.json:2:20: /formatVersion: expected an integer in 1..1",
          "web.json:5:18: /policy/workloads/0/selector: the field cgroup is missing",
          "web.json:5:19: /policy/workloads/0/selector/unit: unknown field \"unit\"; known here: "
          "cgroup",
          "web.json:5:31: /policy/workloads/0/a~1b~0: unknown field \"a/b~\"; known here: name, "
          "selector, mode, onGateTimeout, onRevoke, onDeniedName, allowLoopback, resolvers, "
          "egress, "
          "dns",
          "web.json:5:58: /policy/workloads/1: expected a mapping",
          "web.json:5:63: /policy/workloads/2: expected a mapping",
          "web.json:6:2: /x: unknown field \"x\"; known here: formatVersion, node, policy, maps"));
}

struct Fault {
  std::string text;  // YAML
  std::string pointer;
  std::string_view reason;

  friend std::ostream& operator<<(std::ostream& out, const Fault& fault) {
    return out << fault.reason;
  }
};

class SpecRefuses : public testing::TestWithParam<Fault> {};

TEST_P(SpecRefuses, WithPlaceAndReason) {
  const Parsed parsed = yaml(GetParam().text);
  ASSERT_FALSE(parsed);
  ASSERT_THAT(parsed.error(), SizeIs(1)) << testing::PrintToString(faults(parsed));
  EXPECT_EQ(parsed.error()[0].pointer, GetParam().pointer);
  EXPECT_THAT(parsed.error()[0].reason, HasSubstr(std::string(GetParam().reason)));
  EXPECT_GT(parsed.error()[0].line, 0U);
  EXPECT_GT(parsed.error()[0].column, 0U);
}

const std::string kRule = "/policy/workloads/0/egress/0";

INSTANTIATE_TEST_SUITE_P(
    Documents, SpecRefuses,
    testing::Values(
        Fault{"", "", "the document is empty"}, Fault{"# nothing\n", "", "empty"},
        Fault{"[]", "", "expected a mapping"},
        Fault{"policy: {workloads: []}", "", "the field formatVersion is missing"},
        Fault{"formatVersion: 1", "", "the field policy is missing"},
        Fault{"formatVersion: 1\npolicy: {}", "/policy", "the field workloads is missing"},
        Fault{"formatVersion: 1\npolicy: {workloads: }", "/policy/workloads", "expected a list"},
        Fault{"formatVersion: 1\nformatVersion: 1\npolicy: {workloads: []}", "/formatVersion",
              "given twice"},
        Fault{"formatVersion: 1\n---\npolicy: {workloads: []}", "", "a second document"},
        Fault{"formatVersion: 1\npolicy: &a {workloads: []}", "", "anchors"},
        Fault{"formatVersion: &a 1\npolicy: *a", "", "anchors"},
        Fault{"formatVersion: !!int 1\npolicy: {workloads: []}", "", "tags"},
        Fault{"formatVersion: 1\n? [a]\n: 1", "", "a key must be a scalar"},
        Fault{"formatVersion: 1\n: 1", "", "a key is missing"},
        Fault{"formatVersion: 1\npolicy: {workloads: [", "", "not YAML"},
        Fault{"formatVersion: '1'\npolicy: {workloads: []}", "/formatVersion",
              "expected an integer"},
        Fault{"formatVersion: 1.0\npolicy: {workloads: []}", "/formatVersion",
              "expected an integer"},
        Fault{std::string(40, '[') + std::string(40, ']'), "", "levels deep"}));

INSTANTIATE_TEST_SUITE_P(
    Nodes, SpecRefuses,
    testing::Values(
        Fault{"formatVersion: 1\nnode: {maps: {addresses: 0}}\npolicy: {workloads: []}",
              "/node/maps/addresses", "in 1..16777216"},
        Fault{"formatVersion: 1\nnode: {maps: {address: 1}}\npolicy: {workloads: []}",
              "/node/maps/address", "unknown"},
        Fault{"formatVersion: 1\nnode: {dns: {minTTL: 1d}}\npolicy: {workloads: []}",
              "/node/dns/minTTL", "\"24h\""},
        Fault{"formatVersion: 1\nnode: {dns: {minTTL: -1}}\npolicy: {workloads: []}",
              "/node/dns/minTTL", "seconds"},
        Fault{"formatVersion: 1\nnode: {dns: {minTTL: 1500ms}}\npolicy: {workloads: []}",
              "/node/dns/minTTL", "whole"},
        Fault{"formatVersion: 1\nnode: {dns: {gateDeadline: 31s}}\npolicy: {workloads: []}",
              "/node/dns/gateDeadline", "1ms..30s"},
        Fault{"formatVersion: 1\nnode: {dns: {gateDeadline: 0}}\npolicy: {workloads: []}",
              "/node/dns/gateDeadline", "1ms..30s"},
        Fault{"formatVersion: 1\nnode: {dns: {minTTL: 99999999999h}}\npolicy: {workloads: []}",
              "/node/dns/minTTL", ""},
        Fault{"formatVersion: 1\nnode: {dns: {minTTL: 10, maxTTL: 9}}\npolicy: {workloads: []}",
              "/node/dns", "minTTL is greater"}));

INSTANTIATE_TEST_SUITE_P(
    Workloads, SpecRefuses,
    testing::Values(
        Fault{"formatVersion: 1\npolicy: {workloads: [{selector: {cgroup: /a}}]}",
              "/policy/workloads/0", "name is missing"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a}]}", "/policy/workloads/0",
              "selector is missing"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: 'a b', selector: {cgroup: /a}}]}",
              "/policy/workloads/0/name", "\"a b\""},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: 7, selector: {cgroup: /a}}]}",
              "/policy/workloads/0/name", "expected a string"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /a, unit: b}}]}",
              "/policy/workloads/0/selector/unit", "unknown field"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /}}]}",
              "/policy/workloads/0/selector/cgroup", "root"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /a/../b}}]}",
              "/policy/workloads/0/selector/cgroup", "\"..\""},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /a/.}}]}",
              "/policy/workloads/0/selector/cgroup", "\"..\""},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: //a}}]}",
              "/policy/workloads/0/selector/cgroup", "empty component"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: \"/a\\0b\"}}]}",
              "/policy/workloads/0/selector/cgroup", "not a path"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /" +
                  std::string(256, 'a') + "}}]}",
              "/policy/workloads/0/selector/cgroup", "255"},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /x}}, {name: b, "
              "selector: {cgroup: /x/}}]}",
              "/policy/workloads/1/selector", "the cgroup \"/x\" is also that of workload \"a\""},
        Fault{"formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /x/y/z}}, "
              "{name: b, selector: {cgroup: "
              "/x}}]}",
              "/policy/workloads/0/selector",
              "the cgroup \"/x/y/z\" is inside that of workload \"b\""},
        Fault{workload("mode: Enforce"), "/policy/workloads/0/mode", "enforce, audit"},
        Fault{workload("onRevoke: kill"), "/policy/workloads/0/onRevoke",
              "is not one of keep, destroy"},
        Fault{workload("onGateTimeout: REFUSED"), "/policy/workloads/0/onGateTimeout",
              "servfail, release, drop"},
        Fault{workload("allowLoopback: yes"), "/policy/workloads/0/allowLoopback", "true or false"},
        Fault{workload("egress: {}"), "/policy/workloads/0/egress", "expected a list"},
        Fault{workload("dns: [{matchName: a.org, matchPattern: b.org}]"),
              "/policy/workloads/0/dns/0", "either"},
        Fault{workload("dns: [{}]"), "/policy/workloads/0/dns/0", "either"}));

INSTANTIATE_TEST_SUITE_P(
    Rules, SpecRefuses,
    testing::Values(
        Fault{rule(""), kRule, "no destination"},
        Fault{rule("toCIDR: []"), kRule + "/toCIDR", "must not be empty"},
        Fault{rule("toCIDR: [10.0.0.1/8]"), kRule + "/toCIDR/0", "bits set behind"},
        Fault{rule("toCIDR: [example.com]"), kRule + "/toCIDR/0", "not an IPv4 or IPv6"},
        Fault{rule("toCIDR: [10]"), kRule + "/toCIDR/0", "expected a string"},
        Fault{rule("toCIDRSet: [{except: []}]"), kRule + "/toCIDRSet/0", "cidr is missing"},
        Fault{rule("toCIDRSet: [{cidr: 10.0.0.0/8, except: [11.0.0.0/16]}]"),
              kRule + "/toCIDRSet/0/except/0", "11.0.0.0/16 is not a part of 10.0.0.0/8"},
        Fault{rule("toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]"),
              kRule + "/toCIDRSet/0/except/0", "part of"},
        Fault{rule("toCIDRSet: [{cidr: 10.0.0.0/8, except: [0.0.0.0/0]}]"),
              kRule + "/toCIDRSet/0/except/0", "part of"},
        Fault{rule("toCIDRSet: [{cidr: '::/0', except: [10.0.0.0/8]}]"),
              kRule + "/toCIDRSet/0/except/0", "part of"},
        Fault{rule("toFQDNs: [{matchName: '*.example.com'}]"), kRule + "/toFQDNs/0/matchName",
              "use matchPattern"},
        Fault{rule("toFQDNs: [{matchName: 'a..b'}]"), kRule + "/toFQDNs/0/matchName",
              "not a DNS name"},
        Fault{rule("toFQDNs: [{matchName: '.'}]"), kRule + "/toFQDNs/0/matchName",
              "not a DNS name"},
        Fault{rule("toFQDNs: [{matchPattern: 'a.**.b'}]"), kRule + "/toFQDNs/0/matchPattern", "**"},
        Fault{rule("toFQDNs: [{matchPattern: 'a?.b'}]"), kRule + "/toFQDNs/0/matchPattern",
              "character"},
        Fault{rule("toFQDNs: [a.org]"), kRule + "/toFQDNs/0", "expected a mapping"}));

const std::string kPorts = "/policy/workloads/0/egress/0/toPorts";
const std::string kField = "/policy/workloads/0/egress/0/icmps/0/fields/0";

INSTANTIATE_TEST_SUITE_P(
    Ports, SpecRefuses,
    testing::Values(
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: []"), kPorts, "must not be empty"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{}]"), kPorts + "/0", "port is missing"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 0}]"), kPorts + "/0/port", "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 65536}]"), kPorts + "/0/port",
              "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: '080'}]"), kPorts + "/0/port",
              "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 080}]"), kPorts + "/0/port", "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 1e3}]"), kPorts + "/0/port", "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: http}]"), kPorts + "/0/port",
              "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 99999999999999999999}]"),
              kPorts + "/0/port", "1..65535"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 9, endPort: 8}]"), kPorts + "/0/endPort",
              "less than port"},
        Fault{rule("toCIDR: [10.0.0.0/8], toPorts: [{port: 9, protocol: tcp}]"),
              kPorts + "/0/protocol", "TCP, UDP, SCTP, ANY"},
        Fault{rule("toCIDR: [10.0.0.0/8], icmps: [{fields: [{type: 256}]}]"), kField + "/type",
              "0..255"},
        Fault{rule("toCIDR: [10.0.0.0/8], icmps: [{fields: [{type: PacketTooBig}]}]"),
              kField + "/type", "EchoRequest"},
        Fault{rule("toCIDR: [10.0.0.0/8], icmps: [{fields: [{type: 8, family: v4}]}]"),
              kField + "/family", "IPv4, IPv6"},
        Fault{rule("toCIDR: [10.0.0.0/8], icmps: [{}]"), "/policy/workloads/0/egress/0/icmps/0",
              "fields is missing"}));

TEST(Spec, MoreThan64PortSetsAreRefused) {
  const auto rules = [](int count) {
    std::string text = "egress: [";
    for (int i = 1; i <= count; ++i)
      text += "{toCIDR: [10.0.0.0/8], toPorts: [{port: " + std::to_string(i) + "}]},";
    return workload(text + "]");
  };
  EXPECT_TRUE(yaml(rules(64)));
  EXPECT_THAT(faults(yaml(rules(65))),
              ElementsAre(HasSubstr("65 different sets of ports; at most 64")));
}

TEST(Spec, WorkloadsBesideEachOtherDoNotOverlap) {
  EXPECT_TRUE(
      yaml("formatVersion: 1\npolicy: {workloads: [{name: a, selector: {cgroup: /x/a}}, {name: b, "
           "selector: "
           "{cgroup: /x/ab}}, {name: c, selector: {cgroup: /x/a.b}}]}"));
}

TEST(Spec, ManyFaultsAreCutShort) {
  std::string text = "formatVersion: 1\npolicy:\n  workloads:\n";
  for (int i = 0; i < 250; ++i) text += "    - 1\n";
  const Parsed parsed = yaml(text);
  ASSERT_FALSE(parsed);
  ASSERT_THAT(parsed.error(), SizeIs(kMaxSpecErrors + 1));
  EXPECT_EQ(parsed.error().back().reason, "and 150 more faults");
}

TEST(Spec, FaultsAreFitToPrint) {
  const Parsed parsed = yaml("formatVersion: 1\npolicy: {workloads: [{name: \"\\e[31m\\x01\\xff" +
                             std::string(500, 'x') + "\", selector: {cgroup: /a}}]}");
  ASSERT_FALSE(parsed);
  const std::string text = parsed.error()[0].to_string();
  EXPECT_LT(text.size(), 300U);
  EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; })) << text;
}

TEST(Spec, AByteOrderMarkAndWindowsLinesAreTaken) {
  EXPECT_TRUE(
      yaml("\xef\xbb\xbf"
           "formatVersion: 1\r\npolicy:\r\n  workloads: []\r\n"));
  EXPECT_TRUE(json("\xef\xbb\xbf{\"formatVersion\": 1,\r\n\"policy\": {\"workloads\": []}}"));
}

TEST(SpecJson, RefusesWhatOnlyYamlTakes) {
  for (std::string_view text :
       {"", "{formatVersion: 1}", "{\"formatVersion\": 1,}", "{\"a\": 01}", "{\"a\": 'b'}",
        "# x\n{}", "{} {}", "{\"a\": \"\x01\"}", "{\"a\": \"\xff\"}", "{\"a\": 1e999}",
        "{\"a\": NaN}", "{", "\"", "[1, 2"}) {
    const Parsed parsed = json(text);
    ASSERT_FALSE(parsed) << text;
    ASSERT_THAT(parsed.error(), SizeIs(1)) << text;
    EXPECT_THAT(parsed.error()[0].reason, HasSubstr("not JSON: ")) << text;
  }
}

TEST(SpecJson, SyntaxFaultsHaveTheirPlace) {
  const Parsed parsed = json("{\n  \"formatVersion\": 1,\n  \"policy\": x}");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error()[0].line, 3U);
  EXPECT_EQ(parsed.error()[0].column, 13U);
}

TEST(SpecJson, DuplicateKeysAreRefused) {
  EXPECT_THAT(
      faults(json("{\"formatVersion\": 1, \"policy\": {\"workloads\": [], \"workloads\": []}}")),
      ElementsAre("web.json:1:50: /policy/workloads: the field \"workloads\" is given twice"));
}

TEST(SpecJson, DepthIsBounded) {
  EXPECT_THAT(faults(json(std::string(100000, '['))), ElementsAre(HasSubstr("levels deep")));
}

TEST(SpecYaml, SyntaxFaultsHaveTheirPlace) {
  const Parsed parsed = yaml("formatVersion: 1\npolicy:\n  workloads: [}\n");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error()[0].line, 3U);
  EXPECT_EQ(parsed.error()[0].column, 15U);
}

TEST(DetectFormat, ByNameThenByContent) {
  EXPECT_EQ(detect_format("a.json", "formatVersion: 1"), SpecFormat::kJson);
  EXPECT_EQ(detect_format("a.yaml", "{}"), SpecFormat::kYaml);
  EXPECT_EQ(detect_format("a.yml", "{}"), SpecFormat::kYaml);
  EXPECT_EQ(detect_format("/dev/stdin", " \n{}"), SpecFormat::kJson);
  EXPECT_EQ(detect_format("/dev/stdin", "\xef\xbb\xbf{}"), SpecFormat::kJson);
  EXPECT_EQ(detect_format("a", "formatVersion: 1"), SpecFormat::kYaml);
  EXPECT_EQ(detect_format("a", ""), SpecFormat::kYaml);
}

class LoadSpec : public testing::Test {
 protected:
  LoadSpec() {
    std::string path = (std::filesystem::temp_directory_path() / "mapgate-spec-XXXXXX").native();
    directory_ = mkdtemp(path.data());
  }
  ~LoadSpec() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
};

TEST_F(LoadSpec, ReadsAFile) {
  std::ofstream(directory_ / "a.yaml") << kDesignExample;
  EXPECT_EQ(accepted(load_spec(directory_ / "a.yaml")), accepted(yaml(kDesignExample)));
}

TEST_F(LoadSpec, SaysWhyAFileCannotBeRead) {
  const std::string file = directory_ / "a.yaml";
  EXPECT_THAT(faults(load_spec(file)),
              ElementsAre(file + ": cannot be opened: No such file or directory"));
  const std::string directory = directory_;
  EXPECT_THAT(faults(load_spec(directory)), ElementsAre(directory + ": is not a regular file"));
}

TEST_F(LoadSpec, DoesNotWaitForTheWriterOfAFifo) {
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(faults(load_spec(fifo)), ElementsAre(fifo + ": is not a regular file"));
}

TEST_F(LoadSpec, RefusesFilesThatAreTooLarge) {
  const std::filesystem::path file = directory_ / "a.yaml";
  std::ofstream(file) << "x";
  std::filesystem::resize_file(file, kMaxSpecBytes + 1);
  EXPECT_THAT(faults(load_spec(file)), ElementsAre(HasSubstr("more than 16777216 bytes")));
}

}  // namespace
}  // namespace mapgate::policy
