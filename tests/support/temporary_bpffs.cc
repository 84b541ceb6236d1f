// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temporary_bpffs.h"

#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "tests/support/temporary_cgroup.h"

namespace mapgate::test {

TemporaryBpffsDirectory::TemporaryBpffsDirectory()
    : path_(std::filesystem::path("/sys/fs/bpf") / unique_name()) {
  if (::mkdir(path_.c_str(), 0700) != 0)
    throw std::system_error(errno, std::generic_category(), "mkdir " + path_.string());
}

TemporaryBpffsDirectory::~TemporaryBpffsDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace mapgate::test
