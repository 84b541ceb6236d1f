// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/detail/gate_book.h>

namespace mapgate::reconciler::detail {

std::optional<GateId> GateBook::add(Revision revision, std::optional<TimePoint> deadline,
                                    GateCallback callback) {
  const auto gate = open_gate(deadline, std::move(callback));
  if (!gate) return std::nullopt;
  gates_[*gate].revision = revision;
  by_revision_.insert({revision, *gate});
  return id_of(*gate);
}

std::optional<GateId> GateBook::add(std::span<const AwaitedRow> rows,
                                    std::optional<TimePoint> deadline, GateCallback callback) {
  const auto gate = open_gate(deadline, std::move(callback));
  if (!gate) return std::nullopt;
  for (const AwaitedRow& row : rows) add_waiter(*gate, row);
  return id_of(*gate);
}

bool GateBook::cancel(GateId id) {
  if (id.index >= gates_.size()) return false;
  const Gate& gate = gates_[id.index];
  if (!gate.is_open || gate.generation != id.generation) return false;
  end(id.index, {.outcome = GateOutcome::kCancelled});
  return true;
}

void GateBook::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.top_time() <= now) {
    end(deadlines_.top(), {.outcome = GateOutcome::kTimedOut});
  }
}

void GateBook::shut_down() {
  is_shut_down_ = true;
  for (std::uint32_t gate = 0; gate < gates_.size(); ++gate) {
    if (gates_[gate].is_open) end(gate, {.outcome = GateOutcome::kShuttingDown});
  }
}

void GateBook::watermark_at(Revision lowest_unreconciled) {
  while (!by_revision_.empty() && by_revision_.begin()->first < lowest_unreconciled) {
    end(by_revision_.begin()->second, {});
  }
}

void GateBook::row_realised(RowIndex row, std::optional<Revision> first_unreconciled) {
  const auto queue = rows_.find(row);
  if (queue == rows_.end()) return;
  // leave_row() of the last waiter erases the queue: remember the next one first.
  for (std::uint32_t waiter = queue->second.head; waiter != kNone;) {
    if (first_unreconciled && waiters_[waiter].awaited.revision >= *first_unreconciled) return;
    const std::uint32_t next = waiters_[waiter].next_of_row;
    leave_row(waiter);
    Gate& gate = gates_[waiters_[waiter].gate];
    // Ends now, and with it only waiters that have left their rows.
    if (--gate.rows_missing == 0) end(waiters_[waiter].gate, {});
    waiter = next;
  }
}

void GateBook::row_erased(RowIndex row) {
  const auto queue = rows_.find(row);
  if (queue == rows_.end()) return;
  std::vector<GateId> withdrawn;
  for (std::uint32_t waiter = queue->second.head; waiter != kNone;
       waiter = waiters_[waiter].next_of_row) {
    if (!waiters_[waiter].awaited.erased) withdrawn.push_back(id_of(waiters_[waiter].gate));
  }
  for (const GateId& id : withdrawn) {  // a gate that names the row twice is there twice
    if (gates_[id.index].is_open && gates_[id.index].generation == id.generation) {
      end(id.index, {.outcome = GateOutcome::kWithdrawn});
    }
  }
}

void GateBook::row_failed(RowIndex row, Revision first_unreconciled, const OperationError& error) {
  for (auto queue = rows_.find(row); queue != rows_.end(); queue = rows_.find(row)) {
    end(waiters_[queue->second.head].gate, {.outcome = GateOutcome::kFailed, .error = error});
  }
  for (auto gate = by_revision_.lower_bound({first_unreconciled, 0}); gate != by_revision_.end();
       gate = by_revision_.lower_bound({first_unreconciled, 0})) {
    end(gate->second, {.outcome = GateOutcome::kFailed, .error = error});
  }
}

std::optional<TimePoint> GateBook::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.top_time();
}

std::optional<std::uint32_t> GateBook::open_gate(std::optional<TimePoint> deadline,
                                                 GateCallback callback) {
  if (open_ >= max_gates_) return std::nullopt;
  std::uint32_t index;
  if (free_gates_.empty()) {
    index = static_cast<std::uint32_t>(gates_.size());
    gates_.emplace_back();
  } else {
    index = free_gates_.back();
    free_gates_.pop_back();
  }
  ++open_;
  gates_[index].is_open = true;
  gates_[index].callback = std::move(callback);
  if (deadline) deadlines_.set(index, *deadline);
  return index;
}

void GateBook::end(std::uint32_t index, GateResult result) {
  Gate& gate = gates_[index];
  deadlines_.remove(index);
  if (gate.revision) by_revision_.erase({*gate.revision, index});
  for (std::uint32_t waiter = gate.first_waiter; waiter != kNone;) {
    const std::uint32_t next = waiters_[waiter].next_of_gate;
    if (waiters_[waiter].in_row) leave_row(waiter);
    waiters_[waiter] = {};
    free_waiters_.push_back(waiter);
    waiter = next;
  }
  finished_.push_back({std::move(gate.callback), std::move(result)});
  const std::uint32_t generation = gate.generation + 1;
  gate = {};
  gate.generation = generation;
  free_gates_.push_back(index);
  --open_;
}

void GateBook::add_waiter(std::uint32_t gate, const AwaitedRow& awaited) {
  std::uint32_t index;
  if (free_waiters_.empty()) {
    index = static_cast<std::uint32_t>(waiters_.size());
    waiters_.emplace_back();
  } else {
    index = free_waiters_.back();
    free_waiters_.pop_back();
  }
  RowQueue& queue = rows_[awaited.row];
  waiters_[index] = {.awaited = awaited,
                     .gate = gate,
                     .next_of_gate = gates_[gate].first_waiter,
                     .previous_of_row = queue.tail,
                     .next_of_row = kNone,
                     .in_row = true};
  (queue.tail == kNone ? queue.head : waiters_[queue.tail].next_of_row) = index;
  queue.tail = index;
  gates_[gate].first_waiter = index;
  ++gates_[gate].rows_missing;
}

void GateBook::leave_row(std::uint32_t index) {
  Waiter& waiter = waiters_[index];
  const auto queue = rows_.find(waiter.awaited.row);
  (waiter.previous_of_row == kNone ? queue->second.head
                                   : waiters_[waiter.previous_of_row].next_of_row) =
      waiter.next_of_row;
  (waiter.next_of_row == kNone ? queue->second.tail
                               : waiters_[waiter.next_of_row].previous_of_row) =
      waiter.previous_of_row;
  waiter.in_row = false;
  if (queue->second.head == kNone) rows_.erase(queue);
}

}  // namespace mapgate::reconciler::detail
