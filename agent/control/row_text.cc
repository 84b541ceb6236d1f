// SPDX-License-Identifier: Apache-2.0
#include "agent/control/row_text.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "agent/policy/address.h"
#include "agent/policy/port_set.h"
#include "bpf/abi.h"

namespace mapgate::control {
namespace {

constexpr std::uint32_t kWorkloadBits = 32;
constexpr std::uint32_t kProtocolBits = 16;
constexpr std::uint32_t kPortBits = 16;

policy::IpAddress to_address(const std::uint8_t (&bytes)[16]) {
  policy::IpAddress::Bytes copy;
  std::ranges::copy(bytes, copy.begin());
  return policy::IpAddress(copy);
}

std::string describe_prefix(const mg_prefix_key& key) {
  const policy::IpAddress address = to_address(key.address);
  const std::uint32_t length = key.prefixlen - kWorkloadBits;
  const bool v4 = address.is_v4() && length >= policy::Prefix::kMappedLength;
  return address.to_string() + "/" +
         std::to_string(v4 ? length - policy::Prefix::kMappedLength : length);
}

struct PortText {
  std::string protocol;  // "all"
  std::string port;      // "443", "8000-8063"; empty: all
};

PortText describe_port(const mg_port_key& key) {
  const std::uint32_t bits = key.prefixlen - kWorkloadBits;
  if (bits < kProtocolBits) return {"all", {}};
  PortText text{policy::protocol_name(ntohs(key.protocol)), {}};
  const std::uint32_t free_bits = kProtocolBits + kPortBits - bits;
  if (free_bits == kPortBits) return text;
  const std::uint32_t first = ntohs(key.port);
  const std::uint32_t last = first | ((1U << free_bits) - 1);
  text.port = std::to_string(first);
  if (last != first) text.port += "-" + std::to_string(last);
  return text;
}

template <typename Struct>
Struct value_as(const maps::RowValue& value) {
  Struct result{};
  std::memcpy(&result, value.data(), std::min(value.size(), sizeof result));
  return result;
}

std::string describe_mode(std::uint32_t mode) {
  switch (mode) {
    case MG_MODE_ENFORCE:
      return "enforce";
    case MG_MODE_AUDIT:
      return "audit";
    default:
      return "unconfigured";
  }
}

}  // namespace

std::string error_text(const reconciler::RowError& error) {
  return error.error_class == reconciler::ErrorClass::kCapacity ? "map full: " + error.text
                                                                : error.text;
}

RowText::RowText(const policy::Allocations& allocations, const policy::MapIndices& indices)
    : indices_(indices) {
  for (const auto& [name, allocation] : allocations.workloads()) {
    Workload& workload = workloads_[allocation.id];
    workload.name = name;
    for (const auto& [text, bit] : allocation.port_sets) workload.port_sets.emplace(bit, text);
  }
}

std::string RowText::workload(std::uint32_t id) const {
  const auto entry = workloads_.find(id);
  return entry == workloads_.end() ? std::to_string(id) : entry->second.name;
}

std::vector<std::string> RowText::port_sets(std::uint32_t workload, std::uint64_t bits) const {
  std::vector<std::string> result;
  const auto entry = workloads_.find(workload);
  for (std::uint8_t bit = 0; bit < MG_MAX_PORT_SETS; ++bit) {
    if ((bits >> bit & 1) == 0) continue;
    std::string text = "bit " + std::to_string(bit);
    if (entry != workloads_.end()) {
      const auto named = entry->second.port_sets.find(bit);
      if (named != entry->second.port_sets.end()) text = named->second;
    }
    result.push_back(std::move(text));
  }
  return result;
}

std::string RowText::map_name(maps::MapIndex map) const {
  if (map == indices_.addresses) return "mg_addresses";
  if (map == indices_.prefixes) return "mg_prefixes";
  if (map == indices_.ports) return "mg_ports";
  return "mg_workloads";
}

bool RowText::is_map_name(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"mg_addresses", "mg_prefixes", "mg_ports",
                                                      "mg_workloads"};
  return std::ranges::find(kNames, name) != kNames.end();
}

std::uint32_t RowText::workload_of(const maps::RowKey& key) const {
  if (key.map() == indices_.addresses) return key.as<mg_address_key>().workload;
  if (key.map() == indices_.prefixes) return key.as<mg_prefix_key>().workload;
  if (key.map() == indices_.ports) return key.as<mg_port_key>().workload;
  return key.as<std::uint32_t>();
}

std::string RowText::key(const maps::RowKey& key) const {
  if (key.map() == indices_.addresses)
    return to_address(key.as<mg_address_key>().address).to_string();
  if (key.map() == indices_.prefixes) return describe_prefix(key.as<mg_prefix_key>());
  if (key.map() != indices_.ports) return "settings";
  const PortText text = describe_port(key.as<mg_port_key>());
  return text.port.empty() ? text.protocol : text.protocol + ":" + text.port;
}

nlohmann::ordered_json RowText::describe(const maps::RowKey& key,
                                         const std::optional<maps::RowValue>& value) const {
  const std::uint32_t id = workload_of(key);
  nlohmann::ordered_json result = {{"map", map_name(key.map())}, {"workload", workload(id)}};
  if (key.map() == indices_.workloads) {
    if (!value) return result;
    const auto settings = value_as<mg_workload>(*value);
    result["mode"] = describe_mode(settings.mode);
    result["allow_loopback"] = (settings.flags & MG_WORKLOAD_ALLOW_LOOPBACK) != 0;
    return result;
  }
  if (key.map() == indices_.ports) {
    const PortText text = describe_port(key.as<mg_port_key>());
    result["protocol"] = text.protocol;
    result["port"] = text.port.empty() ? "all" : text.port;
  } else {
    result[key.map() == indices_.addresses ? "address" : "prefix"] = this->key(key);
  }
  if (value) result["ports"] = port_sets(id, value_as<mg_port_sets>(*value).port_sets);
  return result;
}

}  // namespace mapgate::control
