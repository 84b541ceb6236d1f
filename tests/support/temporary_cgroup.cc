// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temporary_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "agent/datapath/environment.h"

namespace mapgate::test {
namespace {

namespace fs = std::filesystem;

// cgroup.kill exists from 5.14 on; without it each process is killed by its id.
void kill_processes(const fs::path& cgroup) {
  if (fs::exists(cgroup / "cgroup.kill")) {
    std::ofstream(cgroup / "cgroup.kill") << "1";
    return;
  }
  std::ifstream processes(cgroup / "cgroup.procs");
  for (pid_t process = 0; processes >> process;) ::kill(process, SIGKILL);
}

void remove_cgroup(const fs::path& cgroup) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(cgroup, error))
    if (entry.is_directory(error)) remove_cgroup(entry.path());
  // A killed process leaves its cgroup a moment later.
  for (int attempt = 0; attempt < 200; ++attempt) {
    if (::rmdir(cgroup.c_str()) == 0 || errno == ENOENT) return;
    kill_processes(cgroup);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

std::optional<fs::path> cgroup_root() {
  auto root = datapath::find_cgroup2_root();
  return root ? std::optional(*root) : std::nullopt;
}

std::string unique_name() {
  return "mapgate-test-" + std::to_string(::getpid()) + "-" +
         std::to_string(std::random_device()());
}

TemporaryCgroup::TemporaryCgroup(const std::string& parent) : path_(parent + "/" + unique_name()) {
  const auto root = cgroup_root();
  if (!root) return;
  directory_ = *root / path_.substr(1);
  make();
}

TemporaryCgroup::~TemporaryCgroup() {
  remove();
}

void TemporaryCgroup::make() {
  if (::mkdir(directory_.c_str(), 0755) != 0 && errno != EEXIST) directory_.clear();
}

void TemporaryCgroup::remove() {
  if (valid()) remove_cgroup(directory_);
}

std::uint64_t TemporaryCgroup::id() const {
  return datapath::cgroup_id(directory_).value_or(0);
}

int TemporaryCgroup::enter() const {
  UniqueFd processes(::open((directory_ / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (!processes || ::write(processes.get(), "0", 1) != 1) return errno;
  return 0;
}

}  // namespace mapgate::test
