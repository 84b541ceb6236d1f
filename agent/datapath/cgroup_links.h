// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// Detaches every link that is pinned in this directory, and removes it. No error if it does not
// exist.
[[nodiscard]] Result<void> remove_links(const std::filesystem::path& directory);

// The pinned links of the cgroups that the programs are attached to: <directory>/<cgroup
// id>/<program>. They hold no descriptor: the pins keep the links.
class CgroupLinks {
 public:
  // The object must be loaded and outlive this.
  CgroupLinks(bpf_object* object, std::filesystem::path directory,
              std::filesystem::path cgroup_root);

  // Ids of all cgroups with a directory of pins, dead ones included.
  [[nodiscard]] std::vector<std::uint64_t> pinned() const;

  // Is the set of links of this cgroup whole, and the cgroup still there?
  [[nodiscard]] bool is_attached(std::uint64_t cgroup) const;

  // Is the cgroup gone?
  [[nodiscard]] bool is_dead(std::uint64_t cgroup) const;

  // Attaches and pins every program; what is attached already moves to the object's program,
  // without a moment in which none is attached. On an error the new links are removed again, those
  // that were there stay.
  [[nodiscard]] Result<void> attach(std::uint64_t cgroup);

  // Detaches the links and removes their pins.
  [[nodiscard]] Result<void> remove(std::uint64_t cgroup);

 private:
  [[nodiscard]] std::filesystem::path directory_of(std::uint64_t cgroup) const;
  // True if the link was made, false if it was there and now has the object's program.
  [[nodiscard]] Result<bool> attach_program(const bpf_program* program, int cgroup_fd,
                                            const std::filesystem::path& pin) const;
  void remove_unknown(const std::filesystem::path& directory) const;

  bpf_object* object_;
  std::filesystem::path directory_;
  std::filesystem::path cgroup_root_;
};

}  // namespace mapgate::datapath
