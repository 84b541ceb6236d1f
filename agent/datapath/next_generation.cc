// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/next_generation.h"

#include <bpf/libbpf.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "agent/datapath/kernel_object.h"

namespace mapgate::datapath {
namespace {

// Their rows are the table's: what a map of a new layout should hold can be written anew.
constexpr std::array kDesiredState{kWorkloadsMap, kAddressesMap, kPrefixesMap, kPortsMap};
// Written by the daemon only, so that a copy cannot miss anything. All others are written by the
// programs as well, or (storage) belong to the links.
constexpr std::array kDaemonState{std::string_view("mg_proxies"),
                                  std::string_view("mg_proxy_ports"),
                                  std::string_view("mg_cgroups")};

bool is_desired_state(std::string_view map) {
  return std::ranges::find(kDesiredState, map) != kDesiredState.end();
}

enum class Use : std::uint8_t { kShare, kCopy, kFillAnew, kIgnore };

Result<Use> use_of(const bpf_object* object, const bpf_map* map, const maps::Map& found,
                   bool in_use, bool replace) {
  const std::string name = bpf_map__name(map);
  const std::string difference = layout_difference(object, map, found);
  if (difference.empty()) {
    if (!is_replaceable(name)) return Use::kShare;
    const bool other_size =
        is_desired_state(name) && found.info().max_entries != bpf_map__max_entries(map);
    return replace || other_size || is_frozen(found.fd()) ? Use::kCopy : Use::kShare;
  }
  if (!in_use) return Use::kIgnore;  // no program reads what is pinned there
  if (is_desired_state(name)) return Use::kFillAnew;
  return std::unexpected(
      Error{"take over map " + name, EINVAL,
            "the attached programs use one with " + difference + ": detach the workloads"});
}

}  // namespace

bool is_replaceable(const std::string& map) {
  return is_desired_state(map) || std::ranges::find(kDaemonState, map) != kDaemonState.end();
}

Result<NextGeneration> load_next_generation(const Options& options, const FoundMaps& found,
                                            const std::vector<std::string>& names) {
  auto set = ProgramSet::open(options);
  if (!set) return std::unexpected(set.error());
  NextGeneration next{std::move(*set), {}, {}, {}};
  std::vector<std::string> copied;
  for (bpf_map* map : next.set.maps()) {
    const std::string name = bpf_map__name(map);
    const maps::Map* before = found.find(name);
    if (before == nullptr) continue;
    const bool replace = std::ranges::find(names, name) != names.end();
    const auto use = use_of(next.set.object(), map, *before, found.is_in_use(name), replace);
    if (!use) return std::unexpected(use.error());
    if (*use == Use::kCopy) copied.push_back(name);
    if (*use == Use::kFillAnew) next.unfilled.push_back(name);
    if (*use == Use::kCopy || *use == Use::kFillAnew) next.replaced.push_back(name);
    if (*use != Use::kShare) continue;
    if (auto shared = ProgramSet::reuse(map, before->fd()); !shared)
      return std::unexpected(shared.error());
  }
  if (auto loaded = next.set.load(options.foreign_sockets); !loaded)
    return std::unexpected(loaded.error());
  for (const std::string& name : copied) {
    auto copy = MapCopy::create(found.find(name)->fd(), next.set.map_fd(name));
    if (!copy) return std::unexpected(copy.error());
    next.copies.push_back(std::move(*copy));
  }
  return next;
}

}  // namespace mapgate::datapath
