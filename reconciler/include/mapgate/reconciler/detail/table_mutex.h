// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mapgate::reconciler::detail {

// The lock of a table. What it guards takes microseconds, so who wants it spins before it sleeps. A
// driver takes it again and again, and would get it each time before somebody who sleeps has woken
// up: it lets the others go first.
class TableMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    if (!spin([this] { return mutex_.try_lock(); })) mutex_.lock();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

  // For drivers, as DriverSide. Waits for others a bounded time only.
  void lock_after_others() {
    spin([this] { return waiting_.load(std::memory_order_relaxed) == 0; });
    lock();
  }

 private:
  static constexpr int kSpins = 2000;  // some tens of microseconds

  template <typename Done>
  static bool spin(const Done& done) {
    for (int i = 0; i < kSpins; ++i) {
      if (done()) return true;
#if defined(__x86_64__)
      _mm_pause();
#else
      std::this_thread::yield();
#endif
    }
    return false;
  }

  std::mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

// A TableMutex as a driver locks it.
class DriverSide {
 public:
  explicit DriverSide(TableMutex& mutex) : mutex_(mutex) {}
  void lock() { mutex_.lock_after_others(); }
  void unlock() { mutex_.unlock(); }

 private:
  TableMutex& mutex_;
};

}  // namespace mapgate::reconciler::detail
