// SPDX-License-Identifier: Apache-2.0
#include "tests/support/requirements.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "agent/datapath/environment.h"

namespace mapgate::test {

bool may_skip() {
  const char* ci = std::getenv("CI");
  return ci == nullptr || std::string_view(ci) != "true";
}

std::string missing_for_bpf() {
  if (::geteuid() != 0) return "needs root";
  if (auto root = datapath::find_cgroup2_root(); !root) return root.error().message();
  if (auto mounted = datapath::ensure_bpffs("/sys/fs/bpf"); !mounted)
    return mounted.error().message();
  return {};
}

}  // namespace mapgate::test
