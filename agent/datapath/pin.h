// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// Pins what `fd` stands for, in place of whatever is there, with no moment in which nothing is.
// Returns the inode of the pin.
[[nodiscard]] Result<ino_t> replace_pin(int fd, const std::filesystem::path& path);

// The inode that is pinned at `path` now; 0 if there is none. A pin made anew has another one.
[[nodiscard]] ino_t pin_inode(const std::filesystem::path& path);

// mkdir -p on a bpffs, for the owner only.
[[nodiscard]] Result<void> make_directory(const std::filesystem::path& directory);

}  // namespace mapgate::datapath
