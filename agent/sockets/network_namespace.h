// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <expected>
#include <memory>
#include <system_error>

#include "agent/unique_fd.h"

namespace mapgate::sockets {

// A network namespace, and hence what keeps it: it lives as long as any copy of this, or a socket
// in it. By default the one that the process runs in.
class NetworkNamespace {
 public:
  NetworkNamespace() = default;

  // That of a thread of any process, by its id. ENOENT, ESRCH: it has ended. Needs CAP_SYS_PTRACE.
  [[nodiscard]] static std::expected<NetworkNamespace, std::error_code> of_thread(pid_t thread);

  // A non-blocking socket in this namespace, closed on exec; -1 with errno. In another namespace
  // than the process's it needs CAP_SYS_ADMIN.
  [[nodiscard]] int open_socket(int family, int type, int protocol = 0) const;

 private:
  explicit NetworkNamespace(UniqueFd fd) : fd_(std::make_shared<const UniqueFd>(std::move(fd))) {}

  std::shared_ptr<const UniqueFd> fd_;  // none: the process's own
};

// What tells a thread's network namespace from others that exist now: an inode of nsfs.
[[nodiscard]] std::expected<std::uint64_t, std::error_code> network_inode(pid_t thread);

}  // namespace mapgate::sockets
