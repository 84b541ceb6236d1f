// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace mapgate::policy {
namespace {

std::string describe(const std::string& what, int error) {
  return what + ": " + std::generic_category().message(error);
}

}  // namespace

std::expected<RegularFile, std::string> RegularFile::open(const std::string& path) {
  // Without O_NONBLOCK, to open a FIFO waits for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) return std::unexpected(describe("cannot be opened", errno));
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) return std::unexpected(describe("cannot be opened", errno));
  if (!S_ISREG(status.st_mode)) return std::unexpected("is not a regular file");
  return RegularFile(std::move(fd), static_cast<std::uint64_t>(status.st_size));
}

std::expected<std::size_t, std::string> RegularFile::read(std::uint64_t offset,
                                                          std::span<char> buffer) const {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t count = pread(fd_.get(), buffer.data() + done, buffer.size() - done,
                                static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(describe("cannot be read", errno));
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

}  // namespace mapgate::policy
