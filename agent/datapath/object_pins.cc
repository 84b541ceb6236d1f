// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/object_pins.h"

#include <bpf/bpf.h>

#include "agent/datapath/pin.h"

namespace mapgate::datapath {

namespace fs = std::filesystem;

Result<void> ObjectPins::pin(int fd, const fs::path& path) {
  if (auto made = make_directory(path.parent_path()); !made) return made;
  auto inode = replace_pin(fd, path);
  if (!inode) return std::unexpected(inode.error());
  pins_[path] = {fd, *inode};
  return {};
}

Result<void> ObjectPins::pin(const bpf_object* object) {
  pins_.clear();
  const bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    if (bpf_map__is_internal(map)) continue;
    if (auto pinned = pin(bpf_map__fd(map), directory_ / "maps" / bpf_map__name(map)); !pinned)
      return pinned;
  }
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    const fs::path path = directory_ / "programs" / bpf_program__name(program);
    if (auto pinned = pin(bpf_program__fd(program), path); !pinned) return pinned;
  }
  return {};
}

std::vector<std::string> ObjectPins::repair(std::vector<std::string>& problems) {
  std::vector<std::string> repaired;
  for (const auto& [path, expected] : pins_) {
    const ino_t present = pin_inode(path);
    if (present == expected.inode) continue;
    if (auto pinned = pin(expected.fd, path); !pinned)
      problems.push_back(pinned.error().message());
    else
      repaired.push_back("pin " + path.string() +
                         (present == 0 ? ": it was removed: pinned again"
                                       : ": another object was pinned there: replaced"));
  }
  return repaired;
}

}  // namespace mapgate::datapath
