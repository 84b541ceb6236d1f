// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>

#include <filesystem>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// Attaches the guard (bpf/guard.bpf.c) to the root cgroup, on the maps of `object`, which must be
// loaded; its links are pinned in `directory`, and those of an earlier guard go on with the new
// programs.
[[nodiscard]] Result<void> install_guard(const bpf_object* object,
                                         const std::filesystem::path& directory,
                                         const std::filesystem::path& cgroup_root);

// Detaches it. No error if there is none.
[[nodiscard]] Result<void> remove_guard(const std::filesystem::path& directory,
                                        const std::filesystem::path& cgroup_root);

}  // namespace mapgate::datapath
