// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/found_maps.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <array>
#include <utility>

#include "agent/datapath/kernel_object.h"
#include "agent/schema/btf_layout.h"
#include "agent/unique_fd.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> pins_below(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (!entry->is_directory(error)) result.push_back(entry->path());
  return result;
}

// What an enum's further values are called changes no byte.
bool same_fields(const policy::Layout& a, const policy::Layout& b) {
  return a.kind == b.kind && a.size == b.size && a.offset == b.offset &&
         a.bit_offset == b.bit_offset && a.bit_size == b.bit_size && a.is_signed == b.is_signed &&
         a.big_endian == b.big_endian && a.name == b.name && a.count == b.count &&
         std::ranges::equal(a.parts, b.parts, same_fields);
}

// Nothing is known of what is all hex.
bool are_alike(const policy::Layout& a, const policy::Layout& b) {
  const bool unknown =
      a.kind == policy::Layout::Kind::kBytes || b.kind == policy::Layout::Kind::kBytes;
  return unknown || same_fields(a, b);
}

bool has_other_types(const bpf_object* object, const bpf_map* map, const maps::Map& found) {
  const btf* types = bpf_object__btf(object);
  const auto there = schema::layouts_of_map(found.fd());
  if (types == nullptr || !there) return false;
  const schema::MapLayouts wanted =
      schema::layouts_of_types(*types, bpf_map__btf_key_type_id(map), bpf_map__key_size(map),
                               bpf_map__btf_value_type_id(map), bpf_map__value_size(map));
  return !are_alike(there->key, wanted.key) || !are_alike(there->value, wanted.value);
}

}  // namespace

FoundMaps::FoundMaps(const fs::path& bpffs) {
  for (const fs::path& pin : pins_below(bpffs / "maps"))
    if (auto map = maps::Map::open_pin(pin)) pinned_.emplace(pin.filename(), std::move(*map));
  for (const char* links : {"links", "guard"})
    for (const fs::path& pin : pins_below(bpffs / links)) add_program_of_link(pin);
  for (const fs::path& pin : pins_below(bpffs / "programs"))
    add_maps_of(UniqueFd(bpf_obj_get(pin.c_str())).get());
}

FoundMaps::FoundMaps(const bpf_object* object) {
  const bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    if (auto own = maps::Map::from_fd(bpf_map__fd(map)))
      used_[bpf_map__name(map)].push_back(std::move(*own));
  }
}

void FoundMaps::add_program_of_link(const fs::path& pin) {
  UniqueFd link(bpf_obj_get(pin.c_str()));
  bpf_link_info info{};
  std::uint32_t size = sizeof info;
  if (!link || bpf_obj_get_info_by_fd(link.get(), &info, &size) != 0) return;
  // Thousands of cgroups share a dozen programs.
  if (info.type != BPF_LINK_TYPE_CGROUP || !programs_.insert(info.prog_id).second) return;
  add_maps_of(UniqueFd(bpf_prog_get_fd_by_id(info.prog_id)).get());
}

void FoundMaps::add_maps_of(int program) {
  for (const std::uint32_t id : program_map_ids(program)) {
    UniqueFd fd(bpf_map_get_fd_by_id(id));
    if (!fd || !seen_.insert(id).second) continue;
    if (auto map = maps::Map::from_fd(fd.get())) used_[map->info().name].push_back(std::move(*map));
  }
}

const maps::Map* FoundMaps::find(const std::string& name) const {
  const auto pinned = pinned_.find(name);
  const auto used = used_.find(name);
  if (used == used_.end()) return pinned == pinned_.end() ? nullptr : &pinned->second;
  for (const maps::Map& map : used->second)
    if (pinned != pinned_.end() && map.info().id == pinned->second.info().id) return &map;
  // If there are several, a process ended while it replaced the map, and both hold the same.
  return &used->second.front();
}

std::string layout_difference(const bpf_object* object, const bpf_map* map,
                              const maps::Map& found_map) {
  const maps::MapInfo& found = found_map.info();
  struct Property {
    const char* name;
    std::uint32_t found;
    std::uint32_t wanted;
  };
  const std::array properties{
      Property{"type", found.type, bpf_map__type(map)},
      Property{"key size", found.key_size, bpf_map__key_size(map)},
      Property{"value size", found.value_size, bpf_map__value_size(map)},
      Property{"flags", found.flags, bpf_map__map_flags(map)},
  };
  for (const Property& property : properties)
    if (property.found != property.wanted)
      return std::string(property.name) + " " + std::to_string(property.found) + ", wanted " +
             std::to_string(property.wanted);
  return has_other_types(object, map, found_map) ? "other types of keys or values" : "";
}

}  // namespace mapgate::datapath
