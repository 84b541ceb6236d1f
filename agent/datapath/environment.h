// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "agent/datapath/error.h"
#include "agent/unique_fd.h"

namespace mapgate::datapath {

// The mount point of the cgroup v2 hierarchy, from /proc/self/mountinfo. ENOENT if there is none.
[[nodiscard]] Result<std::filesystem::path> find_cgroup2_root();

// An error unless `directory`, or the nearest parent of it that exists, lies on a bpffs.
[[nodiscard]] Result<void> check_bpffs(const std::filesystem::path& directory);

// Mounts a bpffs at `mount_point` unless one is there already.
[[nodiscard]] Result<void> ensure_bpffs(const std::filesystem::path& mount_point);

// The id that the kernel knows a cgroup by: the key of cgroup storage, what
// bpf_get_current_cgroup_id() returns.
[[nodiscard]] Result<std::uint64_t> cgroup_id(const std::filesystem::path& cgroup);

// Opens a cgroup by its id. ESTALE if it is gone.
[[nodiscard]] Result<UniqueFd> open_cgroup(const std::filesystem::path& cgroup_root,
                                           std::uint64_t id);

// Where a cgroup is now; empty if it is gone.
[[nodiscard]] std::filesystem::path cgroup_path(const std::filesystem::path& cgroup_root,
                                                std::uint64_t id);

}  // namespace mapgate::datapath
