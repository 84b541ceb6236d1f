// SPDX-License-Identifier: Apache-2.0
#include "agent/sockets/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <thread>

namespace mapgate::sockets {
namespace {

std::string path_of(pid_t thread) {
  return "/proc/" + std::to_string(thread) + "/ns/net";
}

std::error_code last_error() {
  return {errno, std::system_category()};
}

int make_socket(int family, int type, int protocol) {
  return ::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
}

}  // namespace

std::expected<NetworkNamespace, std::error_code> NetworkNamespace::of_thread(pid_t thread) {
  UniqueFd fd(::open(path_of(thread).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::unexpected(last_error());
  return NetworkNamespace(std::move(fd));
}

int NetworkNamespace::open_socket(int family, int type, int protocol) const {
  if (!fd_) return make_socket(family, type, protocol);
  int socket = -1;
  int error = 0;
  // A thread of its own, which ends there: one that goes back could fail to.
  try {
    std::thread([&] {
      if (::setns(fd_->get(), CLONE_NEWNET) == 0) socket = make_socket(family, type, protocol);
      error = errno;
    }).join();
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  errno = error;
  return socket;
}

std::expected<std::uint64_t, std::error_code> network_inode(pid_t thread) {
  struct stat status {};
  if (::stat(path_of(thread).c_str(), &status) != 0) return std::unexpected(last_error());
  return status.st_ino;
}

}  // namespace mapgate::sockets
