// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>

#include <mapgate/reconciler/detail/gate_book.h>
#include <mapgate/reconciler/detail/ledger.h>
#include <mapgate/reconciler/options.h>

namespace mapgate::reconciler::detail {

// What a table knows of one reconciler that follows it. Ledger and gates are guarded by the table's
// lock.
struct Follower {
  explicit Follower(const Options& options) : ledger(options), gates(options.max_gates) {}

  // Tells the driver, once until its next round, that there is something to do. Not under the
  // table's lock.
  void wake() {
    if (!awake.exchange(true) && wakeup) wakeup();
  }

  Ledger ledger;
  GateBook gates;
  std::function<void()> wakeup;
  std::atomic<bool> awake = false;
};

}  // namespace mapgate::reconciler::detail
