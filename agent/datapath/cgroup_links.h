// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "agent/datapath/error.h"
#include "agent/unique_fd.h"

namespace mapgate::datapath {

// The links of the cgroups that the programs are attached to, pinned at <directory>/<cgroup
// id>/<program>. The pins keep them when this object goes; its descriptors keep them when somebody
// removes the pins. Not thread-safe.
class CgroupLinks {
 public:
  // The object must be loaded and outlive this, or the next use().
  CgroupLinks(bpf_object* object, std::filesystem::path directory,
              std::filesystem::path cgroup_root);

  // Ids of all cgroups with a directory of pins, dead ones included.
  [[nodiscard]] std::vector<std::uint64_t> pinned() const;

  // Does this hold the whole set of links of this cgroup, each of them attached and pinned?
  [[nodiscard]] bool is_attached(std::uint64_t cgroup) const;

  // Is the cgroup gone?
  [[nodiscard]] bool is_dead(std::uint64_t cgroup) const;

  // Attaches and pins every program; what is attached already moves to the object's program,
  // without a moment in which none is attached. On an error the new links are removed again, those
  // that were there stay.
  [[nodiscard]] Result<void> attach(std::uint64_t cgroup);

  // Takes hold of the pinned links as they are, whatever programs they run.
  void hold(std::uint64_t cgroup);

  // Every link that is held moves to the program of the same name in `object`. On an error all of
  // them are back at their old programs, or the error says that they are not.
  [[nodiscard]] Result<void> use(bpf_object* object);

  // Looks whether the links of a cgroup that is attached are what they were: attached, pinned, and
  // running the object's programs. What is not is put right. Returns what that was, one line each;
  // `problems` gets what could not be put right.
  [[nodiscard]] std::vector<std::string> repair(std::uint64_t cgroup,
                                                std::vector<std::string>& problems);

  // Detaches the links and removes their pins. No error if there are none.
  [[nodiscard]] Result<void> remove(std::uint64_t cgroup);

 private:
  struct Link {
    UniqueFd fd;
    ino_t pin = 0;  // inode of its pin
  };
  using Links = std::map<std::string, Link>;  // by program

  [[nodiscard]] std::filesystem::path directory_of(std::uint64_t cgroup) const;
  // True if the link was made, false if it was there and now has the object's program.
  [[nodiscard]] Result<bool> attach_program(const bpf_program* program, int cgroup_fd,
                                            std::uint64_t cgroup, Link& link) const;
  [[nodiscard]] Result<void> create(const bpf_program* program, int cgroup_fd,
                                    const std::filesystem::path& pin, Link& link) const;
  [[nodiscard]] Result<std::string> repair_link(const bpf_program* program, std::uint64_t cgroup,
                                                Link& link) const;
  [[nodiscard]] Result<void> move(const std::string& program, const Link& link,
                                  bpf_object* object) const;
  void remove_unknown(std::uint64_t cgroup);

  bpf_object* object_;
  std::filesystem::path directory_;
  std::filesystem::path cgroup_root_;
  std::map<std::uint64_t, Links> held_;
};

}  // namespace mapgate::datapath
