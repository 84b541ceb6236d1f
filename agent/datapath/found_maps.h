// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <mapgate/maps/map.h>

namespace mapgate::datapath {

// The maps that an earlier process left below a bpffs directory. What counts is what the attached
// programs read: a pin may have been removed, or put there by somebody else.
class FoundMaps {
 public:
  // Looks at the pins of maps, links and programs. What cannot be opened is not there; to find maps
  // by their programs takes CAP_SYS_ADMIN.
  explicit FoundMaps(const std::filesystem::path& bpffs);
  // The maps of a loaded object.
  explicit FoundMaps(const bpf_object* object);

  // One that programs use, the pinned one first; if no program uses one of this name, what is
  // pinned. Null: there is none.
  [[nodiscard]] const maps::Map* find(const std::string& name) const;
  [[nodiscard]] bool is_in_use(const std::string& name) const { return used_.contains(name); }

 private:
  void add_program_of_link(const std::filesystem::path& pin);
  void add_maps_of(int program);

  std::map<std::string, maps::Map> pinned_;
  std::map<std::string, std::vector<maps::Map>> used_;  // by programs that are pinned or attached
  std::set<std::uint32_t> programs_;                    // looked at, by id
  std::set<std::uint32_t> seen_;                        // maps in used_, by id
};

// How `found` differs from what `map`, one of `object`'s, defines, its size aside: "value size 16,
// wanted 8", or "other types". Empty: it does not, or has no BTF to tell.
[[nodiscard]] std::string layout_difference(const bpf_object* object, const bpf_map* map,
                                            const maps::Map& found);

}  // namespace mapgate::datapath
