// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace mapgate::test {

// On a build machine (CI=true) nothing may be skipped: a test that cannot run there fails.
[[nodiscard]] bool may_skip();

// Why BPF programs cannot be attached to cgroups here (no root, no cgroup v2, no bpffs); empty if
// they can. Mounts a bpffs at /sys/fs/bpf if there is none.
[[nodiscard]] std::string missing_for_bpf();

}  // namespace mapgate::test

// Ends the test when `condition` does not hold: skipped with the reason, or failed where CI=true.
#define MAPGATE_REQUIRE(condition, reason)                     \
  do {                                                         \
    if (!(condition)) {                                        \
      if (mapgate::test::may_skip()) GTEST_SKIP() << (reason); \
      FAIL() << "cannot run here, and CI=true: " << (reason);  \
    }                                                          \
  } while (false)
