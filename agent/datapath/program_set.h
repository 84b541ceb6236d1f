// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/datapath/datapath.h"
#include "agent/datapath/error.h"
#include "guard.skel.h"
#include "mapgate.skel.h"

namespace mapgate::datapath {

// What is loaded together: the programs of workloads, the guard's, and the maps of both. Nothing of
// it is attached or pinned by this.
class ProgramSet {
 public:
  // The maps are defined as `options` says; nothing is in the kernel so far.
  [[nodiscard]] static Result<ProgramSet> open(const Options& options);

  // Before load(): every map that is pinned.
  [[nodiscard]] std::vector<bpf_map*> maps() const;
  // Before load(): this map is the one of `fd`, instead of a new one. `fd` stays the caller's.
  [[nodiscard]] static Result<void> reuse(bpf_map* map, int fd);

  // `with_guard` false: guard_missing() says "switched off". An error if the workloads' programs
  // cannot be loaded; without the guard the rest is whole.
  [[nodiscard]] Result<void> load(bool with_guard);

  [[nodiscard]] bpf_object* object() const { return skeleton_->obj; }
  [[nodiscard]] const mapgate_bpf& skeleton() const { return *skeleton_; }
  // Null if there is none: guard_missing() says why.
  [[nodiscard]] bpf_object* guard() const { return guard_ ? guard_->obj : nullptr; }
  [[nodiscard]] const std::string& guard_missing() const { return guard_missing_; }
  // -1: there is none of this name.
  [[nodiscard]] int map_fd(std::string_view name) const;

 private:
  struct Deleter {
    void operator()(mapgate_bpf* skeleton) const { mapgate_bpf::destroy(skeleton); }
    void operator()(guard_bpf* skeleton) const { guard_bpf::destroy(skeleton); }
  };
  [[nodiscard]] Result<void> load_guard();

  std::unique_ptr<mapgate_bpf, Deleter> skeleton_;
  std::unique_ptr<guard_bpf, Deleter> guard_;
  std::string guard_missing_;
};

}  // namespace mapgate::datapath
