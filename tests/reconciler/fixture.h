// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mapgate/reconciler/reconciler.h>

namespace mapgate::reconciler {

using namespace std::chrono_literals;

using TestTable = Table<int, std::string>;
using TestReconciler = Reconciler<int, std::string>;

inline OperationError transient() {
  return {ErrorClass::kTransient, EBUSY, "busy"};
}
inline OperationError permanent() {
  return {ErrorClass::kPermanent, EINVAL, "invalid"};
}
inline OperationError full() {
  return {ErrorClass::kCapacity, E2BIG, "full"};
}

// A target in memory: what it holds, what was asked of it, and rules that make it fail.
class FakeTarget : public Operations<int, std::string> {
 public:
  using Op = Operation<int, std::string>;

  void apply(std::span<const Op> batch, std::span<OperationResult> results) override {
    rounds.push_back(batch.size());
    if (during_apply) std::exchange(during_apply, nullptr)();
    for (std::size_t i = 0; i < batch.size(); ++i) results[i] = apply_one(batch[i]);
  }

  std::size_t batch_limit() const override { return limit; }

  std::expected<void, OperationError> scan_begin() override {
    if (scan_error) return std::unexpected(*scan_error);
    scan_position_ = held.begin();
    return {};
  }

  std::expected<bool, OperationError> scan_next(
      std::size_t max, std::vector<std::pair<int, std::string>>& entries) override {
    if (scan_error) return std::unexpected(*scan_error);
    while (max-- > 0 && scan_position_ != held.end()) entries.push_back(*scan_position_++);
    return scan_position_ == held.end();
  }

  bool is_absence(const int&, const std::string& value) const override { return value == absence; }

  // Every operation on `key` fails with `error`, `times` times.
  void fail(int key, OperationError error, int times = 1'000'000) {
    failures[key] = {error, times};
  }
  void heal(int key) { failures.erase(key); }
  [[nodiscard]] int attempts(int key) const {
    int count = 0;
    for (const Op& op : log) count += op.key == key;
    return count;
  }

  std::map<int, std::string> held;
  std::vector<Op> log;
  std::vector<std::size_t> rounds;  // batch sizes
  std::map<int, std::pair<OperationError, int>> failures;
  std::size_t capacity = SIZE_MAX;
  std::size_t limit = SIZE_MAX;        // of a batch
  std::optional<std::string> absence;  // the value that stands for "nothing"
  std::optional<OperationError> scan_error;
  std::function<void()> during_apply;  // once

 private:
  OperationResult apply_one(const Op& op) {
    log.push_back(op);
    if (const auto failure = failures.find(op.key); failure != failures.end()) {
      OperationResult result{.error = failure->second.first};
      if (--failure->second.second == 0) failures.erase(failure);
      return result;
    }
    if (!op.value) return {.freed = held.erase(op.key) > 0};
    if (!held.contains(op.key) && held.size() >= capacity) return {.error = full()};
    held[op.key] = *op.value;
    return {};
  }

  std::map<int, std::string>::iterator scan_position_;
};

// A table, one reconciler, and a clock that only moves when told.
class ReconcilerTest : public testing::Test {
 protected:
  Revision put(int key, std::string value) {
    auto transaction = table.begin();
    transaction.put(key, std::move(value));
    return std::move(transaction).commit(now).revision;
  }
  Revision erase(int key) {
    auto transaction = table.begin();
    transaction.erase(key);
    return std::move(transaction).commit(now).revision;
  }

  // Steps until nothing is due now.
  void settle(Budget budget = {}) { settle(reconciler, budget); }
  void settle(TestReconciler& other, Budget budget = {}) {
    for (int steps = 0; other.step(now, budget).more; ++steps)
      ASSERT_LT(steps, 100'000) << "never settles";
  }
  // Moves the clock to each point at which something is due, up to `duration` from now.
  void run_for(Duration duration) {
    const TimePoint end = now + duration;
    for (;;) {
      settle();
      const auto next = reconciler.step(now).next;
      if (!next || *next > end) break;
      now = *next;
    }
    now = end;
    settle();
  }

  // Opens a gate and says where its outcome goes: at once, or when the callback runs.
  struct Waiting {
    std::optional<GateResult> result;
    GateId id;
    int calls = 0;
  };
  Waiting& wait_for_rows(std::vector<int> keys, std::optional<TimePoint> deadline = {}) {
    Waiting& waiting = waitings.emplace_back();
    note(waiting, reconciler.wait_for_rows(keys, deadline, record(waiting)));
    return waiting;
  }
  Waiting& wait_for_revision(Revision revision, std::optional<TimePoint> deadline = {}) {
    Waiting& waiting = waitings.emplace_back();
    note(waiting, reconciler.wait_for_revision(table.epoch(), revision, deadline, record(waiting)));
    return waiting;
  }
  static std::optional<GateOutcome> outcome(const Waiting& waiting) {
    if (!waiting.result) return std::nullopt;
    return waiting.result->outcome;
  }

  TimePoint now{1h};
  TestTable table{Epoch::from_random(1, 2)};
  FakeTarget target;
  Options options{.jitter = 0};
  std::deque<Waiting> waitings;
  TestReconciler reconciler{table, target, options};

 private:
  static GateCallback record(Waiting& waiting) {
    return [&waiting](GateResult result) {
      ++waiting.calls;
      waiting.result = std::move(result);
    };
  }
  static void note(Waiting& waiting, GateTicket ticket) {
    ASSERT_TRUE(ticket.has_value());
    if (const auto* result = std::get_if<GateResult>(&*ticket)) {
      waiting.result = *result;
    } else {
      waiting.id = std::get<GateId>(*ticket);
    }
  }
};

}  // namespace mapgate::reconciler
