// SPDX-License-Identifier: Apache-2.0
// Holds docs/spec.schema.json and the parser to each other.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "agent/policy/spec.h"

namespace mapgate::policy {
namespace {

using nlohmann::json;

json schema() {
  std::ifstream stream(MAPGATE_DOCS "/spec.schema.json");
  return json::parse(stream);
}

// A definition of the schema, and where a spec has one. Its unknown field makes the parser list the
// fields it knows.
struct Definition {
  std::string_view name;
  std::string_view pointer;

  friend std::ostream& operator<<(std::ostream& out, const Definition& d) { return out << d.name; }
};

json minimal_spec() {
  return json::parse(
      R"({"formatVersion": 1, "node": {"maps": {}, "dns": {}}, "policy": {"workloads": [
    {"name": "web", "selector": {"cgroup": "/web"}, "egress": [
      {"toFQDNs": [{"matchName": "a.org"}], "toCIDRSet": [{"cidr": "10.0.0.0/8"}],
       "toPorts": [{"port": 1}], "icmps": [{"fields": [{"type": 8}]}]}]}]},
    "maps": [{"name": "blocklist", "pin": "/sys/fs/bpf/blocklist", "entries": [{"key": 1, "value": 2}],
              "layout": {"key": "u32", "value": "u32"},
              "create": {"type": "hash", "keySize": 4, "valueSize": 4, "maxEntries": 1}},
             {"name": "tenants", "pin": "/sys/fs/bpf/tenants", "layout": {"key": "u32"},
              "inner": {"type": "hash", "keySize": 4, "valueSize": 4, "maxEntries": 1,
                        "layout": {"key": "u32", "value": "u32"}}}]})");
}

std::expected<Spec, std::vector<SpecError>> parse(const json& document) {
  return parse_spec(document.dump(), SpecFormat::kJson, "test.json");
}

class SchemaDefinition : public testing::TestWithParam<Definition> {};

TEST_P(SchemaDefinition, HasTheFieldsThatTheParserKnows) {
  ASSERT_TRUE(parse(minimal_spec()));
  json document = minimal_spec();
  document[json::json_pointer(std::string(GetParam().pointer))]["zzz"] = 1;
  const auto parsed = parse(document);
  ASSERT_FALSE(parsed);
  const std::string& reason = parsed.error().front().reason;
  constexpr std::string_view kKnown = "known here: ";
  std::istringstream list(reason.substr(reason.find(kKnown) + kKnown.size()));
  std::set<std::string> parser;
  for (std::string field; std::getline(list >> std::ws, field, ',');) parser.insert(field);

  const json definition = schema()["$defs"][std::string(GetParam().name)];
  std::set<std::string> documented;
  for (const auto& [field, unused] : definition["properties"].items()) documented.insert(field);
  EXPECT_EQ(documented, parser);
  EXPECT_EQ(definition["additionalProperties"], false);
}

TEST_P(SchemaDefinition, RequiresWhatTheParserRequires) {
  const json definition = schema()["$defs"][std::string(GetParam().name)];
  const json::json_pointer place{std::string(GetParam().pointer)};
  std::set<std::string> required;
  for (const json& field : definition.value("required", json::array()))
    required.insert(field.get<std::string>());
  const json object = minimal_spec()[place];
  for (const auto& [field, unused] : object.items()) {
    json document = minimal_spec();
    document[place].erase(field);
    const auto parsed = parse(document);
    const bool missing =
        !parsed && parsed.error().front().reason == "the field " + field + " is missing";
    EXPECT_EQ(missing, required.contains(field)) << field;
    required.erase(field);
  }
  EXPECT_TRUE(required.empty()) << "not in the minimal spec: " << *required.begin();
}

INSTANTIATE_TEST_SUITE_P(
    All, SchemaDefinition,
    testing::Values(
        Definition{"spec", ""}, Definition{"node", "/node"}, Definition{"maps", "/node/maps"},
        Definition{"dnsSettings", "/node/dns"}, Definition{"policy", "/policy"},
        Definition{"workload", "/policy/workloads/0"},
        Definition{"selector", "/policy/workloads/0/selector"},
        Definition{"egressRule", "/policy/workloads/0/egress/0"},
        Definition{"nameSelector", "/policy/workloads/0/egress/0/toFQDNs/0"},
        Definition{"cidrSet", "/policy/workloads/0/egress/0/toCIDRSet/0"},
        Definition{"port", "/policy/workloads/0/egress/0/toPorts/0"},
        Definition{"icmp", "/policy/workloads/0/egress/0/icmps/0"},
        Definition{"icmpField", "/policy/workloads/0/egress/0/icmps/0/fields/0"},
        Definition{"declaredMap", "/maps/0"}, Definition{"mapEntry", "/maps/0/entries/0"},
        Definition{"mapLayout", "/maps/0/layout"}, Definition{"outerLayout", "/maps/1/layout"},
        Definition{"innerMaps", "/maps/1/inner"}, Definition{"mapCreation", "/maps/0/create"}));

TEST(Schema, DefaultsAreTheParsers) {
  const json definitions = schema()["$defs"];
  const NodeSettings node;
  const json& maps = definitions["maps"]["properties"];
  EXPECT_EQ(maps["addresses"]["default"], node.maps.addresses);
  EXPECT_EQ(maps["prefixes"]["default"], node.maps.prefixes);
  EXPECT_EQ(maps["ports"]["default"], node.maps.ports);
  // The parser reads the documented defaults to what it takes when the field is not there.
  json document = minimal_spec();
  for (const auto& [field, property] : definitions["dnsSettings"]["properties"].items()) {
    document["node"]["dns"][field] = property["default"];
  }
  const auto parsed = parse(document);
  ASSERT_TRUE(parsed) << parsed.error().front().to_string();
  EXPECT_EQ(parsed->node.dns, node.dns);
}

}  // namespace
}  // namespace mapgate::policy
