// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include <mapgate/reconciler/reconciler.h>

namespace mapgate::reconciler {

// A counter in the kernel that one thread adds to and another one waits for, see eventfd(2).
class WakeupFd {
 public:
  WakeupFd();  // throws std::system_error: no descriptors left
  ~WakeupFd();
  WakeupFd(const WakeupFd&) = delete;
  WakeupFd& operator=(const WakeupFd&) = delete;

  // From any thread.
  void signal() noexcept;
  // Returns once signalled since the last return, or after `timeout`; none: no timeout.
  void wait(std::optional<Duration> timeout) noexcept;
  // For poll(2) and the like: readable when signalled.
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

// Drives a reconciler by a thread of its own, for programs without an event loop. Gate callbacks
// run in that thread. Stops when destroyed; gates still open stay open, and end with the
// reconciler.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class ThreadDriver {
 public:
  explicit ThreadDriver(Reconciler<Key, Value, Hash>& reconciler, const Budget& budget = {})
      : reconciler_(reconciler), budget_(budget) {
    reconciler_.set_wakeup([this] { wakeup_.signal(); });
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~ThreadDriver() {
    thread_.request_stop();
    wakeup_.signal();
    thread_.join();
    reconciler_.set_wakeup(nullptr);
  }
  ThreadDriver(const ThreadDriver&) = delete;
  ThreadDriver& operator=(const ThreadDriver&) = delete;

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const StepResult step = reconciler_.step(std::chrono::steady_clock::now(), budget_);
      if (step.more) continue;
      std::optional<Duration> timeout;
      if (step.next) timeout = *step.next - std::chrono::steady_clock::now();
      wakeup_.wait(timeout);
    }
  }

  Reconciler<Key, Value, Hash>& reconciler_;
  const Budget budget_;
  WakeupFd wakeup_;
  std::jthread thread_;
};

}  // namespace mapgate::reconciler
