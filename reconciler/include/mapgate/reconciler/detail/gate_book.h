// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include <mapgate/reconciler/detail/indexed_heap.h>
#include <mapgate/reconciler/detail/ledger.h>
#include <mapgate/reconciler/gate.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler::detail {

// The open gates of one reconciler. Everything is called with the table locked; a gate that ends
// goes into the list of finished ones, whose callbacks the driver runs outside the lock. Opening,
// cancelling and expiring cost O(log n) in the number of gates, waking costs O(those that wake).
class GateBook {
 public:
  // A state of a row that a gate waits for.
  struct AwaitedRow {
    RowIndex row = 0;
    Revision revision = 0;
    bool erased = false;
  };
  struct Finished {
    GateCallback callback;
    GateResult result;
  };

  explicit GateBook(std::size_t max_gates)
      : max_gates_(max_gates), deadlines_(DeadlinePosition{&gates_}) {}

  // None: max_gates are open.
  std::optional<GateId> add(Revision revision, std::optional<TimePoint> deadline,
                            GateCallback callback);
  std::optional<GateId> add(std::span<const AwaitedRow> rows, std::optional<TimePoint> deadline,
                            GateCallback callback);
  // False: it has ended already.
  bool cancel(GateId id);

  void expire(TimePoint now);
  void shut_down();
  // Every revision below `lowest_unreconciled` is realised.
  void watermark_at(Revision lowest_unreconciled);
  // `row` is realised up to `first_unreconciled`, exclusively, or altogether.
  void row_realised(RowIndex row, std::optional<Revision> first_unreconciled);
  // A commit erased `row`.
  void row_erased(RowIndex row);
  // `row` failed permanently, and its revisions from `first_unreconciled` on with it.
  void row_failed(RowIndex row, Revision first_unreconciled, const OperationError& error);

  [[nodiscard]] bool waits_for(RowIndex row) const { return rows_.contains(row); }
  [[nodiscard]] bool is_shut_down() const { return is_shut_down_; }
  [[nodiscard]] std::size_t open() const { return open_; }
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  [[nodiscard]] bool has_finished() const { return !finished_.empty(); }
  void take_finished(std::vector<Finished>& finished) { finished.swap(finished_); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Gate {
    GateCallback callback;
    std::uint32_t generation = 0;
    bool is_open = false;
    std::uint32_t deadline_position = UINT32_MAX;
    std::optional<Revision> revision;    // of a revision gate
    std::uint32_t first_waiter = kNone;  // of a row gate
    std::uint32_t rows_missing = 0;
  };

  // One row that one gate waits for; among the row's in order of revision.
  struct Waiter {
    AwaitedRow awaited;
    std::uint32_t gate = 0;
    std::uint32_t next_of_gate = kNone;
    std::uint32_t previous_of_row = kNone;
    std::uint32_t next_of_row = kNone;
    bool in_row = false;
  };

  struct RowQueue {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };

  struct DeadlinePosition {
    std::vector<Gate>* gates;
    std::uint32_t& operator()(std::uint32_t gate) const { return (*gates)[gate].deadline_position; }
  };

  std::optional<std::uint32_t> open_gate(std::optional<TimePoint> deadline, GateCallback callback);
  [[nodiscard]] GateId id_of(std::uint32_t gate) const { return {gate, gates_[gate].generation}; }
  void end(std::uint32_t gate, GateResult result);
  void add_waiter(std::uint32_t gate, const AwaitedRow& awaited);
  void leave_row(std::uint32_t waiter);

  std::size_t max_gates_;
  std::size_t open_ = 0;
  bool is_shut_down_ = false;
  std::vector<Gate> gates_;
  std::vector<std::uint32_t> free_gates_;
  std::vector<Waiter> waiters_;
  std::vector<std::uint32_t> free_waiters_;
  std::set<std::pair<Revision, std::uint32_t>> by_revision_;
  boost::unordered_flat_map<RowIndex, RowQueue> rows_;
  IndexedHeap<DeadlinePosition> deadlines_;
  std::vector<Finished> finished_;
};

}  // namespace mapgate::reconciler::detail
