// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <expected>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/engine/types.h"

namespace mapgate::engine {

// Drives a reconciler on an event loop: a step when there is something to do, and at the times that
// it asks for. For the loop's thread, except that the table may be written from any.
class ReconcileLoop {
 public:
  using GateOutcome = std::expected<reconciler::GateResult, reconciler::GateRefusal>;

  // The table and the operations outlive it.
  ReconcileLoop(boost::asio::io_context& io, Table& table, Operations& operations,
                const reconciler::Options& options);
  ReconcileLoop(const ReconcileLoop&) = delete;
  ReconcileLoop& operator=(const ReconcileLoop&) = delete;

  // Nothing is done before.
  void start();

  // Between the two nothing is written, and no gate ends: for moments in which the target changes.
  void pause();
  void resume();

  [[nodiscard]] Reconciler& reconciler() { return reconciler_; }
  [[nodiscard]] const Reconciler& reconciler() const { return reconciler_; }

  // Gates to co_await. Cancelling the coroutine cancels the gate.
  [[nodiscard]] boost::asio::awaitable<GateOutcome> rows_realised(
      std::vector<maps::RowKey> keys, std::optional<reconciler::TimePoint> deadline);
  [[nodiscard]] boost::asio::awaitable<GateOutcome> revision_realised(
      reconciler::Epoch epoch, reconciler::Revision revision,
      std::optional<reconciler::TimePoint> deadline);

 private:
  void wake();
  void step();
  void step_at(reconciler::TimePoint time);

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  std::optional<reconciler::TimePoint> timer_at_;
  std::atomic<bool> scheduled_ = false;  // a step is in the loop's queue
  bool paused_ = false;
  Reconciler reconciler_;
  // Held weakly by the handlers of the loop: one that is already queued may run after this object
  // is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
