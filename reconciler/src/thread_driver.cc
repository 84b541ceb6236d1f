// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/thread_driver.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace mapgate::reconciler {

WakeupFd::WakeupFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

WakeupFd::~WakeupFd() {
  ::close(fd_);
}

void WakeupFd::signal() noexcept {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the waiter is signalled anyway.
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

void WakeupFd::wait(std::optional<Duration> timeout) noexcept {
  pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
  timespec limit{};
  if (timeout) {
    const Duration left = std::max(*timeout, Duration::zero());
    limit.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
    limit.tv_nsec = (left % std::chrono::seconds(1)).count();
  }
  if (::ppoll(&entry, 1, timeout ? &limit : nullptr, nullptr) <= 0) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
}

}  // namespace mapgate::reconciler
