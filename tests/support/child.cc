// SPDX-License-Identifier: Apache-2.0
#include "tests/support/child.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

namespace mapgate::test {
namespace {

constexpr int kDied = 255;

[[noreturn]] void run(const std::function<int()>& function) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(20);
  int result = kDied;
  try {
    result = function();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  ::_exit(result);
}

}  // namespace

Child::Child(const std::function<int()>& function) : pid_(::fork()) {
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) run(function);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int Child::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0)
    if (errno != EINTR) return kDied;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kDied;
}

int run_in_child(const std::function<int()>& function) {
  return Child(function).wait();
}

}  // namespace mapgate::test
