// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/guard.h"

#include <cerrno>
#include <memory>

#include "agent/datapath/cgroup_links.h"
#include "agent/datapath/environment.h"
#include "agent/datapath/kernel_object.h"
#include "guard.skel.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

struct SkeletonDeleter {
  void operator()(guard_bpf* skeleton) const { guard_bpf::destroy(skeleton); }
};
using Skeleton = std::unique_ptr<guard_bpf, SkeletonDeleter>;

Result<void> use_maps_of(const bpf_object* object, bpf_object* guard) {
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, guard) {
    if (bpf_map__is_internal(map)) continue;
    const bpf_map* shared = bpf_object__find_map_by_name(object, bpf_map__name(map));
    if (shared == nullptr || bpf_map__reuse_fd(map, bpf_map__fd(shared)) != 0)
      return std::unexpected(system_error(std::string("share map ") + bpf_map__name(map), errno));
  }
  return {};
}

Result<Skeleton> load(const bpf_object* object) {
  LibbpfLog log;
  Skeleton guard(guard_bpf::open(nullptr));
  if (!guard) return std::unexpected(Error{"open the guard", errno, log.first_line()});
  if (auto shared = use_maps_of(object, guard->obj); !shared)
    return std::unexpected(shared.error());
  if (auto loaded = load_object(guard->obj); !loaded) return std::unexpected(loaded.error());
  return guard;
}

}  // namespace

Result<void> install_guard(const bpf_object* object, const fs::path& directory,
                           const fs::path& cgroup_root) {
  Result<std::uint64_t> root = cgroup_id(cgroup_root);
  if (!root) return std::unexpected(root.error());
  Result<Skeleton> guard = load(object);
  if (!guard) return std::unexpected(guard.error());
  return CgroupLinks((*guard)->obj, directory, cgroup_root).attach(*root);
}

Result<void> remove_guard(const fs::path& directory, const fs::path& cgroup_root) {
  Result<std::uint64_t> root = cgroup_id(cgroup_root);
  if (!root) return std::unexpected(root.error());
  return remove_links(directory / std::to_string(*root));
}

}  // namespace mapgate::datapath
