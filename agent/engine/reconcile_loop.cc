// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/reconcile_loop.h"

#include <chrono>
#include <utility>
#include <variant>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
using GateOutcome = ReconcileLoop::GateOutcome;

// Waits for the gate that `open` makes with the callback it is given.
template <typename Open>
asio::awaitable<GateOutcome> await_gate(Reconciler& reconciler, Open open) {
  auto initiate = [&reconciler, &open](auto handler) {
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    // Always through the loop: a coroutine must not run inside a step.
    auto finish = [shared](GateOutcome outcome) {
      asio::get_associated_cancellation_slot(*shared).clear();
      asio::post(asio::get_associated_executor(*shared),
                 [shared, outcome = std::move(outcome)]() mutable {
                   std::move (*shared)(std::move(outcome));
                 });
    };
    auto ticket = open([finish](reconciler::GateResult result) { finish(std::move(result)); });
    if (!ticket) return finish(std::unexpected(ticket.error()));
    if (auto* result = std::get_if<reconciler::GateResult>(&*ticket))
      return finish(std::move(*result));
    const auto gate = std::get<reconciler::GateId>(*ticket);
    if (auto slot = asio::get_associated_cancellation_slot(*shared); slot.is_connected()) {
      slot.assign([&reconciler, gate](asio::cancellation_type) { reconciler.cancel(gate); });
    }
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(GateOutcome)>(
      std::move(initiate), asio::use_awaitable);
}

}  // namespace

ReconcileLoop::ReconcileLoop(asio::io_context& io, Table& table, Operations& operations,
                             const reconciler::Options& options)
    : io_(io), timer_(io), reconciler_(table, operations, options) {}

void ReconcileLoop::start() {
  reconciler_.set_wakeup([this] { wake(); });
  wake();
}

void ReconcileLoop::wake() {
  if (scheduled_.exchange(true)) return;
  asio::post(io_, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) step();
  });
}

void ReconcileLoop::pause() {
  paused_ = true;
}

void ReconcileLoop::resume() {
  paused_ = false;
  wake();
}

void ReconcileLoop::step() {
  scheduled_.store(false);
  if (paused_) return;
  const reconciler::StepResult result = reconciler_.step(std::chrono::steady_clock::now());
  if (result.more) {
    wake();
  } else if (result.next) {
    step_at(*result.next);
  }
}

void ReconcileLoop::step_at(reconciler::TimePoint time) {
  // A timer that fires too early costs one idle step; setting it anew for each held answer would
  // cost more.
  if (timer_at_ && *timer_at_ <= time) return;
  timer_at_ = time;
  timer_.expires_at(time);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    timer_at_.reset();
    step();
  });
}

asio::awaitable<GateOutcome> ReconcileLoop::rows_realised(
    std::vector<maps::RowKey> keys, std::optional<reconciler::TimePoint> deadline) {
  co_return co_await await_gate(
      reconciler_, [this, &keys, deadline](reconciler::GateCallback callback) {
        return reconciler_.wait_for_rows(keys, deadline, std::move(callback));
      });
}

asio::awaitable<GateOutcome> ReconcileLoop::revision_realised(
    reconciler::Epoch epoch, reconciler::Revision revision,
    std::optional<reconciler::TimePoint> deadline) {
  co_return co_await await_gate(
      reconciler_, [this, epoch, revision, deadline](reconciler::GateCallback callback) {
        return reconciler_.wait_for_revision(epoch, revision, deadline, std::move(callback));
      });
}

}  // namespace mapgate::engine
