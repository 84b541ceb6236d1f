// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mapgate::test {

// Where cgroup v2 is mounted; none: nowhere.
[[nodiscard]] std::optional<std::filesystem::path> cgroup_root();

// "mapgate-test-<pid>-<random>": two test runs never meet. No dot, which a bpffs refuses.
[[nodiscard]] std::string unique_name();

// A cgroup v2 of this test's own, directly below the root or inside another one. Destruction kills
// the processes in it and removes it with everything below.
class TemporaryCgroup {
 public:
  // `parent` is the path() of another one; empty: the root.
  explicit TemporaryCgroup(const std::string& parent = {});
  ~TemporaryCgroup();
  TemporaryCgroup(const TemporaryCgroup&) = delete;
  TemporaryCgroup& operator=(const TemporaryCgroup&) = delete;

  // False if it could not be made: no root, no cgroup v2.
  [[nodiscard]] bool valid() const { return !directory_.empty(); }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  // Relative to the root, as a spec writes it: "/mapgate-test-…".
  [[nodiscard]] const std::string& path() const { return path_; }
  // The kernel's id of it; 0 while it is removed.
  [[nodiscard]] std::uint64_t id() const;

  // Moves the calling process into it; returns errno.
  [[nodiscard]] int enter() const;

  // Removes it as destruction does; make() gives a cgroup of the same path and another id.
  void remove();
  void make();

 private:
  std::filesystem::path directory_;
  std::string path_;
};

}  // namespace mapgate::test
