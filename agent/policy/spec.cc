// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "agent/policy/name.h"
#include "agent/policy/regular_file.h"
#include "agent/policy/spec_fields.h"
#include "agent/policy/spec_maps.h"
#include "bpf/abi.h"

namespace mapgate::policy {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kMaxMapEntries = 1U << 24;
constexpr std::size_t kMaxWorkloadName = 128;
constexpr std::size_t kMaxPathLength = 4095;    // PATH_MAX without the zero
constexpr std::size_t kMaxPathComponent = 255;  // NAME_MAX

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool consists_of(std::string_view text, std::string_view others) {
  return std::ranges::all_of(text,
                             [&](char c) { return is_letter_or_digit(c) || others.contains(c); });
}

struct IcmpName {
  std::string_view name;
  std::uint8_t type;
};
// The names that Cilium has for these types.
constexpr std::array kIcmpV4Names = std::to_array<IcmpName>({
    {"EchoReply", 0},
    {"DestinationUnreachable", 3},
    {"Redirect", 5},
    {"Echo", 8},
    {"EchoRequest", 8},
    {"RouterAdvertisement", 9},
    {"RouterSelection", 10},
    {"TimeExceeded", 11},
    {"ParameterProblem", 12},
    {"Timestamp", 13},
    {"TimestampReply", 14},
});
constexpr std::array kIcmpV6Names = std::to_array<IcmpName>({
    {"DestinationUnreachable", 1},
    {"PacketTooBig", 2},
    {"TimeExceeded", 3},
    {"ParameterProblem", 4},
    {"EchoRequest", 128},
    {"EchoReply", 129},
    {"MulticastListenerQuery", 130},
    {"MulticastListenerReport", 131},
    {"MulticastListenerDone", 132},
    {"RouterSolicitation", 133},
    {"RouterAdvertisement", 134},
    {"NeighborSolicitation", 135},
    {"NeighborAdvertisement", 136},
    {"RedirectMessage", 137},
});

// Reads the whole document into a Spec. Goes on after a fault, so that all are found.
class SpecReader {
 public:
  SpecReader(SpecErrors& errors, std::string_view file) : errors_(errors), file_(file) {}

  Spec read(const Place& root) {
    Spec spec;
    Fields fields(errors_, root);
    if (const auto version = fields.required("formatVersion")) {
      static_cast<void>(read_integer(errors_, *version, 1, 1));
    }
    if (const auto node = fields.optional("node")) spec.node = read_node(*node);
    const auto policy = fields.optional("policy");
    const auto maps = fields.optional("maps");
    if (policy) spec.workloads = read_policy(*policy);
    if (maps) spec.maps = read_declared_maps(errors_, *maps, file_);
    // Leaving out both would let go of everything: more often a slip.
    if (!policy && !maps && root.node().kind == DocumentNode::Kind::kMapping)
      errors_.add(root, "the field policy is missing");
    fields.finish();
    return spec;
  }

 private:
  NodeSettings read_node(const Place& place) {
    NodeSettings node;
    Fields fields(errors_, place);
    if (const auto maps = fields.optional("maps")) node.maps = read_map_sizes(*maps);
    if (const auto dns = fields.optional("dns")) node.dns = read_dns_settings(*dns);
    fields.finish();
    return node;
  }

  MapSizes read_map_sizes(const Place& place) {
    MapSizes sizes;
    Fields fields(errors_, place);
    read_count(fields.optional("addresses"), kMaxMapEntries, sizes.addresses);
    read_count(fields.optional("prefixes"), kMaxMapEntries, sizes.prefixes);
    read_count(fields.optional("ports"), kMaxMapEntries, sizes.ports);
    fields.finish();
    return sizes;
  }

  DnsSettings read_dns_settings(const Place& place) {
    DnsSettings settings;
    Fields fields(errors_, place);
    read_seconds(fields.optional("minTTL"), settings.min_ttl);
    read_seconds(fields.optional("maxTTL"), settings.max_ttl);
    read_seconds(fields.optional("grace"), settings.grace);
    read_milliseconds(fields.optional("gateDeadline"), milliseconds(1), seconds(30),
                      settings.gate_deadline);
    read_milliseconds(fields.optional("upstreamTimeout"), milliseconds(10), seconds(60),
                      settings.upstream_timeout);
    read_count(fields.optional("maxHeldAnswers"), 1U << 20, settings.max_held_answers);
    read_count(fields.optional("maxHeldAnswersPerWorkload"), 1U << 20,
               settings.max_held_answers_per_workload);
    read_count(fields.optional("maxAddressesPerName"), 1U << 16, settings.max_addresses_per_name);
    read_count(fields.optional("maxAddressesPerWorkload"), 1U << 24,
               settings.max_addresses_per_workload);
    if (settings.min_ttl > settings.max_ttl) errors_.add(place, "minTTL is greater than maxTTL");
    fields.finish();
    return settings;
  }

  void read_count(const std::optional<Place>& place, std::uint32_t greatest, std::uint32_t& count) {
    if (!place) return;
    if (const auto value = read_integer(errors_, *place, 1, greatest))
      count = static_cast<std::uint32_t>(*value);
  }

  void read_seconds(const std::optional<Place>& place, seconds& value) {
    if (!place) return;
    const auto duration = read_duration(errors_, *place, milliseconds(0), hours(24 * 365));
    if (!duration) return;
    value = std::chrono::duration_cast<seconds>(*duration);
    if (value != *duration) errors_.add(*place, "expected whole seconds");
  }

  void read_milliseconds(const std::optional<Place>& place, milliseconds least,
                         milliseconds greatest, milliseconds& value) {
    if (!place) return;
    if (const auto duration = read_duration(errors_, *place, least, greatest)) value = *duration;
  }

  std::vector<WorkloadSpec> read_policy(const Place& place) {
    std::vector<WorkloadSpec> workloads;
    Fields fields(errors_, place);
    ResolverSelector resolvers;
    if (const auto list = fields.optional("resolvers")) resolvers = read_resolvers(*list);
    if (const auto list = fields.required("workloads")) {
      read_list(errors_, *list, EmptyList::kAllowed,
                [&](const Place& item) { workloads.push_back(read_workload(item, resolvers)); });
      if (workloads.size() >= MG_MAX_WORKLOADS) {
        errors_.add(*list, "more than " + std::to_string(MG_MAX_WORKLOADS - 1) + " workloads");
      }
      check_overlaps(*list, workloads);
    }
    fields.finish();
    return workloads;
  }

  WorkloadSpec read_workload(const Place& place, const ResolverSelector& resolvers) {
    WorkloadSpec workload;
    workload.resolvers = resolvers;
    Fields fields(errors_, place);
    if (const auto name = fields.required("name")) workload.name = read_workload_name(*name);
    if (const auto selector = fields.required("selector"))
      workload.cgroup = read_selector(*selector);
    if (const auto mode = fields.optional("mode")) {
      workload.mode =
          read_choice<Mode>(errors_, *mode, {{"enforce", Mode::kEnforce}, {"audit", Mode::kAudit}})
              .value_or(workload.mode);
    }
    workload.on_gate_timeout =
        workload.mode == Mode::kAudit ? GateTimeoutAction::kRelease : GateTimeoutAction::kServfail;
    if (const auto action = fields.optional("onGateTimeout")) {
      workload.on_gate_timeout =
          read_choice<GateTimeoutAction>(errors_, *action,
                                         {{"servfail", GateTimeoutAction::kServfail},
                                          {"release", GateTimeoutAction::kRelease},
                                          {"drop", GateTimeoutAction::kDrop}})
              .value_or(workload.on_gate_timeout);
    }
    if (const auto action = fields.optional("onRevoke")) {
      workload.on_revoke = read_choice<RevokeAction>(
                               errors_, *action,
                               {{"keep", RevokeAction::kKeep}, {"destroy", RevokeAction::kDestroy}})
                               .value_or(workload.on_revoke);
    }
    if (const auto answer = fields.optional("onDeniedName")) {
      workload.on_denied_name =
          read_choice<DeniedNameAnswer>(errors_, *answer,
                                        {{"refused", DeniedNameAnswer::kRefused},
                                         {"nxdomain", DeniedNameAnswer::kNxdomain},
                                         {"drop", DeniedNameAnswer::kDrop}})
              .value_or(workload.on_denied_name);
    }
    if (const auto loopback = fields.optional("allowLoopback")) {
      workload.allow_loopback = read_boolean(errors_, *loopback).value_or(true);
    }
    if (const auto list = fields.optional("resolvers")) workload.resolvers = read_resolvers(*list);
    if (const auto egress = fields.optional("egress")) {
      read_list(errors_, *egress, EmptyList::kAllowed,
                [&](const Place& item) { workload.egress.push_back(read_rule(item)); });
      check_port_sets(*egress, workload.egress);
    }
    if (const auto dns = fields.optional("dns"))
      read_names(*dns, EmptyList::kAllowed, workload.dns);
    fields.finish();
    return workload;
  }

  ResolverSelector read_resolvers(const Place& place) {
    ResolverSelector resolvers{.system = false, .prefixes = {}};
    read_list(errors_, place, EmptyList::kRefused, [&](const Place& item) {
      const auto text = read_string(errors_, item);
      if (!text) return;
      if (*text == "system") {
        resolvers.system = true;
      } else if (const auto prefix = Prefix::parse(*text)) {
        resolvers.prefixes.push_back(*prefix);
      } else {
        errors_.add(item, in_quotes(*text) + " " + prefix.error() +
                              "; expected \"system\", an address or a prefix");
      }
    });
    return resolvers;
  }

  std::string read_workload_name(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return {};
    if (text->empty() || text->size() > kMaxWorkloadName || !consists_of(*text, "._-@:")) {
      errors_.add(place, in_quotes(*text) + " is not 1.." + std::to_string(kMaxWorkloadName) +
                             " letters, digits, '.', '_', '-', '@' or ':'");
    } else if (!names_.insert(*text).second) {
      errors_.add(place, "the workload name " + in_quotes(*text) + " is given twice");
    }
    return std::string(*text);
  }

  std::string read_selector(const Place& place) {
    std::string path;
    Fields fields(errors_, place);
    if (const auto cgroup = fields.required("cgroup")) path = read_cgroup(*cgroup);
    fields.finish();
    return path;
  }

  // Empty after a fault.
  std::string read_cgroup(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return {};
    const auto refuse = [&](std::string_view reason) {
      errors_.add(place, in_quotes(*text) + " " + std::string(reason));
      return std::string();
    };
    if (!text->starts_with('/')) return refuse("is not an absolute path below the cgroup root");
    std::string_view path = *text;
    if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    if (path == "/") return refuse("is the cgroup root: it would hold every process");
    if (path.size() > kMaxPathLength || path.contains('\0')) return refuse("is not a path");
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = std::min(path.find('/', at + 1), path.size());
      const std::string_view component = path.substr(at + 1, end - at - 1);
      if (component.empty()) return refuse("has an empty component");
      if (component == "." || component == "..") return refuse("has a component \".\" or \"..\"");
      if (component.size() > kMaxPathComponent)
        return refuse("has a component of more than 255 characters");
      at = end;
    }
    return std::string(path);
  }

  // Two workloads may not share a process.
  void check_overlaps(const Place& list, const std::vector<WorkloadSpec>& workloads) {
    std::map<std::string_view, std::size_t> by_path;
    for (std::size_t i = 0; i < workloads.size(); ++i) {
      if (workloads[i].cgroup.empty()) continue;
      const auto [first, inserted] = by_path.emplace(workloads[i].cgroup, i);
      if (!inserted) report_overlap(list, workloads, i, first->second, "is also that of workload ");
    }
    for (const auto& [path, index] : by_path) {
      for (std::size_t slash = path.rfind('/'); slash > 0; slash = path.rfind('/', slash - 1)) {
        const auto outer = by_path.find(path.substr(0, slash));
        if (outer != by_path.end()) {
          report_overlap(list, workloads, index, outer->second, "is inside that of workload ");
        }
      }
    }
  }

  void report_overlap(const Place& list, const std::vector<WorkloadSpec>& workloads,
                      std::size_t index, std::size_t other, std::string_view relation) {
    const Place workload(list, index, list.node().items[index]);
    Fields fields(errors_, workload);
    const auto selector = fields.optional("selector");
    errors_.add(*selector, "the cgroup " + in_quotes(workloads[index].cgroup) + " " +
                               std::string(relation) + in_quotes(workloads[other].name));
  }

  void check_port_sets(const Place& place, const std::vector<EgressRule>& rules) {
    std::set<std::string> port_sets;
    for (const EgressRule& rule : rules) port_sets.insert(rule.ports.to_string());
    if (port_sets.size() > MG_MAX_PORT_SETS) {
      errors_.add(place, "the rules have " + std::to_string(port_sets.size()) +
                             " different sets of ports; at most " +
                             std::to_string(MG_MAX_PORT_SETS) + " are possible");
    }
  }

  EgressRule read_rule(const Place& place) {
    EgressRule rule;
    Fields fields(errors_, place);
    const auto fqdns = fields.optional("toFQDNs");
    const auto cidrs = fields.optional("toCIDR");
    const auto cidr_sets = fields.optional("toCIDRSet");
    const auto ports = fields.optional("toPorts");
    const auto icmps = fields.optional("icmps");
    fields.finish();
    if (place.node().kind == DocumentNode::Kind::kMapping && !fqdns && !cidrs && !cidr_sets) {
      errors_.add(place, "the rule has no destination: toFQDNs, toCIDR or toCIDRSet");
    }
    if (fqdns) read_names(*fqdns, EmptyList::kRefused, rule.to_fqdns);
    if (cidrs) {
      read_list(errors_, *cidrs, EmptyList::kRefused, [&](const Place& item) {
        if (const auto prefix = read_prefix(item))
          rule.to_cidrs.push_back({.cidr = *prefix, .except = {}});
      });
    }
    if (cidr_sets) {
      read_list(errors_, *cidr_sets, EmptyList::kRefused,
                [&](const Place& item) { read_cidr_set(item, rule.to_cidrs); });
    }
    rule.ports = ports || icmps ? PortSet(read_ports(ports, icmps)) : PortSet::everything();
    return rule;
  }

  void read_names(const Place& place, EmptyList empty, std::vector<NameSelector>& names) {
    read_list(errors_, place, empty, [&](const Place& item) {
      Fields fields(errors_, item);
      const auto name = fields.optional("matchName");
      const auto pattern = fields.optional("matchPattern");
      fields.finish();
      if (item.node().kind != DocumentNode::Kind::kMapping) return;
      if (name.has_value() == pattern.has_value())
        errors_.add(item, "expected either matchName or matchPattern");
      if (name) read_match_name(*name, names);
      if (pattern) read_match_pattern(*pattern, names);
    });
  }

  void read_match_name(const Place& place, std::vector<NameSelector>& names) {
    const auto text = read_string(errors_, place);
    if (!text) return;
    auto name = normalize_name(*text);
    if (text->contains('*')) {
      errors_.add(place, in_quotes(*text) + " has a '*': use matchPattern");
    } else if (!name || name->empty() || !consists_of(*name, ".-_")) {
      errors_.add(place, in_quotes(*text) + " is not a DNS name of letters, digits, '-' and '_'");
    } else {
      names.emplace_back(*std::move(name));
    }
  }

  void read_match_pattern(const Place& place, std::vector<NameSelector>& names) {
    const auto text = read_string(errors_, place);
    if (!text) return;
    if (auto pattern = NamePattern::parse(*text)) {
      names.emplace_back(*std::move(pattern));
    } else {
      errors_.add(place, in_quotes(*text) + " " + pattern.error());
    }
  }

  std::optional<Prefix> read_prefix(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return std::nullopt;
    const auto prefix = Prefix::parse(*text);
    if (prefix) return *prefix;
    errors_.add(place, in_quotes(*text) + " " + prefix.error());
    return std::nullopt;
  }

  void read_cidr_set(const Place& place, std::vector<CidrSelector>& cidrs) {
    Fields fields(errors_, place);
    const auto cidr = fields.required("cidr");
    const auto except = fields.optional("except");
    fields.finish();
    const auto prefix = cidr ? read_prefix(*cidr) : std::nullopt;
    CidrSelector selector{.cidr = prefix.value_or(Prefix()), .except = {}};
    if (except) {
      read_list(errors_, *except, EmptyList::kAllowed, [&](const Place& item) {
        const auto inner = read_prefix(item);
        if (!inner || !prefix) return;
        if (*inner == *prefix || !prefix->contains(*inner)) {
          errors_.add(item, inner->to_string() + " is not a part of " + prefix->to_string());
        }
        selector.except.push_back(*inner);
      });
    }
    if (prefix) cidrs.push_back(std::move(selector));
  }

  std::vector<PortRange> read_ports(const std::optional<Place>& ports,
                                    const std::optional<Place>& icmps) {
    std::vector<PortRange> ranges;
    if (ports) {
      read_list(errors_, *ports, EmptyList::kRefused,
                [&](const Place& item) { read_port(item, ranges); });
    }
    if (icmps) {
      read_list(errors_, *icmps, EmptyList::kRefused, [&](const Place& item) {
        Fields fields(errors_, item);
        const auto list = fields.required("fields");
        fields.finish();
        if (!list) return;
        read_list(errors_, *list, EmptyList::kRefused,
                  [&](const Place& field) { read_icmp(field, ranges); });
      });
    }
    return ranges;
  }

  void read_port(const Place& place, std::vector<PortRange>& ranges) {
    Fields fields(errors_, place);
    const auto port = fields.required("port");
    const auto end_port = fields.optional("endPort");
    const auto protocol = fields.optional("protocol");
    fields.finish();
    const auto first = port ? read_port_number(*port) : std::nullopt;
    const auto last = end_port ? read_port_number(*end_port) : first;
    std::vector<std::uint8_t> protocols = {kTcp, kUdp, kSctp};
    if (protocol) {
      protocols = read_choice<std::vector<std::uint8_t>>(
                      errors_, *protocol,
                      {{"TCP", {kTcp}}, {"UDP", {kUdp}}, {"SCTP", {kSctp}}, {"ANY", protocols}})
                      .value_or(protocols);
    }
    if (!first || !last) return;
    if (*last < *first) {
      errors_.add(*end_port, "endPort is less than port");
      return;
    }
    for (std::uint8_t number : protocols) append_ports(number, *first, *last, ranges);
  }

  // A range that merely holds the port of encrypted DNS does not open it.
  static void append_ports(std::uint8_t protocol, std::uint16_t first, std::uint16_t last,
                           std::vector<PortRange>& ranges) {
    const bool holds = first <= kEncryptedDnsPort && kEncryptedDnsPort <= last && first != last &&
                       is_encrypted_dns(protocol, kEncryptedDnsPort);
    if (!holds) {
      ranges.push_back({.protocol = protocol, .first = first, .last = last});
      return;
    }
    if (first < kEncryptedDnsPort)
      ranges.push_back({.protocol = protocol, .first = first, .last = kEncryptedDnsPort - 1});
    if (last > kEncryptedDnsPort)
      ranges.push_back({.protocol = protocol, .first = kEncryptedDnsPort + 1, .last = last});
  }

  // Cilium writes ports as strings; both are taken.
  std::optional<std::uint16_t> read_port_number(const Place& place) {
    const DocumentNode& node = place.node();
    std::int64_t number = 0;
    if (node.kind == DocumentNode::Kind::kInteger) {
      number = node.integer;
    } else if (node.kind == DocumentNode::Kind::kString && !node.text.starts_with('0')) {
      const char* end = node.text.data() + node.text.size();
      const auto parsed = std::from_chars(node.text.data(), end, number);
      if (parsed.ec != std::errc{} || parsed.ptr != end) number = 0;
    }
    if (number >= 1 && number <= UINT16_MAX) return static_cast<std::uint16_t>(number);
    errors_.add(place, "expected a port number in 1..65535");
    return std::nullopt;
  }

  void read_icmp(const Place& place, std::vector<PortRange>& ranges) {
    Fields fields(errors_, place);
    const auto family = fields.optional("family");
    const auto type = fields.required("type");
    fields.finish();
    const bool v6 =
        family &&
        read_choice<bool>(errors_, *family, {{"IPv4", false}, {"IPv6", true}}).value_or(false);
    const auto number =
        type ? read_icmp_type(*type, v6 ? std::span<const IcmpName>(kIcmpV6Names) : kIcmpV4Names)
             : std::nullopt;
    if (number)
      ranges.push_back({.protocol = v6 ? kIcmpV6 : kIcmp, .first = *number, .last = *number});
  }

  std::optional<std::uint8_t> read_icmp_type(const Place& place, std::span<const IcmpName> names) {
    const DocumentNode& node = place.node();
    if (node.kind == DocumentNode::Kind::kString) {
      const auto found = std::ranges::find(names, node.text, &IcmpName::name);
      if (found != names.end()) return found->type;
      std::vector<std::string_view> known;
      for (const IcmpName& name : names) known.push_back(name.name);
      errors_.add(place, in_quotes(node.text) +
                             " is not a type of this family; known are numbers and " +
                             list_names(known));
      return std::nullopt;
    }
    const auto number = read_integer(errors_, place, 0, 255);
    return number ? std::optional(static_cast<std::uint8_t>(*number)) : std::nullopt;
  }

  SpecErrors& errors_;
  std::string_view file_;
  std::set<std::string_view> names_;
};

std::string printable(std::string_view text) {
  std::string result(text.substr(0, 256));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

std::vector<SpecError> file_error(std::string_view file, std::string reason) {
  return {{.file = std::string(file),
           .line = 0,
           .column = 0,
           .pointer = {},
           .reason = std::move(reason)}};
}

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

std::string SpecError::to_string() const {
  std::string text = file;
  if (line > 0) text += ':' + std::to_string(line) + ':' + std::to_string(column);
  text += ": ";
  if (!pointer.empty()) text += pointer + ": ";
  return text + reason;
}

SpecFormat detect_format(const std::filesystem::path& file, std::string_view text) {
  const std::filesystem::path extension = file.extension();
  if (extension == ".json") return SpecFormat::kJson;
  if (extension == ".yaml" || extension == ".yml") return SpecFormat::kYaml;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{' ? SpecFormat::kJson
                                                               : SpecFormat::kYaml;
}

std::expected<Spec, std::vector<SpecError>> parse_spec(std::string_view text, SpecFormat format,
                                                       std::string_view file) {
  if (text.size() > kMaxSpecBytes) {
    return std::unexpected(
        file_error(file, "more than " + std::to_string(kMaxSpecBytes) + " bytes"));
  }
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto document = format == SpecFormat::kJson ? parse_json(text) : parse_yaml(text);
  if (!document) {
    auto errors = file_error(file, printable(document.error().reason));
    errors.front().line = document.error().location.line;
    errors.front().column = document.error().location.column;
    return std::unexpected(std::move(errors));
  }
  SpecErrors errors(file);
  Spec spec = SpecReader(errors, file).read(Place(*document));
  if (!errors.empty()) return std::unexpected(std::move(errors).finish());
  return spec;
}

std::expected<Spec, std::vector<SpecError>> load_spec(const std::filesystem::path& file) {
  const auto opened = RegularFile::open(file.native());
  if (!opened) return std::unexpected(file_error(file.native(), opened.error()));
  std::string text(kMaxSpecBytes + 1, '\0');
  const auto size = opened->read(0, text);
  if (!size) return std::unexpected(file_error(file.native(), size.error()));
  text.resize(*size);
  return parse_spec(text, detect_format(file, text), file.native());
}

}  // namespace mapgate::policy
