// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <mapgate/reconciler/detail/chunked_array.h>
#include <mapgate/reconciler/detail/indexed_heap.h>
#include <mapgate/reconciler/operations.h>
#include <mapgate/reconciler/options.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler::detail {

using RowIndex = std::uint32_t;

// What one reconciler knows of the rows of a table: which are not realised, since which revision,
// and which to attempt next. Rows are numbers here; keys and values stay in the table. Everything
// is called with the table locked.
//
// Unreconciled rows stand in a list in the order of their `first_unreconciled`. A commit appends,
// because a row gets that revision when it leaves the realised state, and revisions only grow. A
// row that changes while an attempt is under way gets a second node at the end: if the attempt
// succeeds, that node is where the row stands from then on; if it fails, the row stays where it
// was. The few rows that a resync finds wrong have an old revision and stand in an ordered set
// beside the list.
class Ledger {
 public:
  explicit Ledger(const Options& options);

  // --- commits
  // --------------------------------------------------------------------------------------- `row`
  // got a new state at `revision`, the newest of the table.
  void changed(RowIndex row, Revision revision, TimePoint now);
  void prefetch(RowIndex row) const { __builtin_prefetch(&entries_[row], 1); }
  // What realising `row` changes besides.
  void prefetch_neighbours(RowIndex row) const;
  // Somebody waits for `row`: attempt it before other new work.
  void mark_urgent(RowIndex row);

  // --- the driver's rounds. What is collected into `batch` is under way until each row is told
  // succeeded() or failed(), which comes before anything else is collected.

  // Up to `limit` never attempted rows that somebody waits for; false if there are none.
  bool collect_urgent(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch);
  // Other rows that are due: at most budget.new_work never attempted ones (none if `only_urgent`,
  // repairs aside), and at most budget.retries others.
  void collect_others(TimePoint now, const Budget& budget, bool only_urgent,
                      std::vector<RowIndex>& batch);
  // `held`: there is an element under its key now.
  void succeeded(RowIndex row, bool held, TimePoint now);
  // True if the failure is final for the state that the row has now (permanent, and unchanged
  // meanwhile).
  bool failed(RowIndex row, OperationError error, TargetId target, TimePoint now);
  // `count` elements were removed from `target`: as many parked rows are due now.
  void room_freed(TargetId target, std::size_t count, TimePoint now);
  // `target` is not what it was: rows that failed there permanently, or are parked, are due now.
  void target_changed(TargetId target);

  // --- resync
  // ------------------------------------------------------------------------------------------
  void begin_scan();
  // The scan saw `row` with the right value: realised without a write. True if it was not realised
  // before.
  bool adopt(RowIndex row, TimePoint now);
  // The scan saw an element under `row`'s key, or did not until its end.
  void found(RowIndex row) {
    entry(row).seen_in = scan_generation_;
    entry(row).held = true;
  }
  void not_found(RowIndex row) { entry(row).held = false; }
  // The scan saw `row`, or did not have to.
  [[nodiscard]] bool seen(RowIndex row) const { return entry(row).seen_in == scan_generation_; }
  // `row` was realised at `revision`, but the target does not hold it any more.
  void drifted(RowIndex row, Revision revision, TimePoint now);

  // --- questions
  // ---------------------------------------------------------------------------------------
  // The target holds an element under `row`'s key, right or wrong, as far as is known.
  [[nodiscard]] bool held(RowIndex row) const { return entry(row).held; }
  [[nodiscard]] bool realised(RowIndex row) const { return entry(row).phase == Phase::kRealised; }
  // The smallest revision of `row` that is not realised.
  [[nodiscard]] std::optional<Revision> first_unreconciled(RowIndex row) const;
  // The smallest revision of all that is not realised; `next` when there is none.
  [[nodiscard]] Revision lowest_unreconciled(Revision next) const;
  // The smallest first_unreconciled among permanently failed rows.
  [[nodiscard]] std::optional<std::pair<Revision, RowIndex>> lowest_failed() const;
  [[nodiscard]] RowStatus status(RowIndex row, bool erased) const;
  [[nodiscard]] const OperationError* permanent_error(RowIndex row) const;
  // The smallest revision among those that no attempt has been made for; `next` when there is none.
  [[nodiscard]] Revision lowest_never_attempted(Revision next) const;
  // Since when the row that holds the watermark is not realised.
  [[nodiscard]] std::optional<TimePoint> oldest_unreconciled() const;
  // Rows that failed, in the order in which they began to, up to `max` of them.
  [[nodiscard]] std::vector<RowIndex> first_errors(std::size_t max) const;
  [[nodiscard]] std::size_t pending() const { return pending_; }
  [[nodiscard]] std::size_t errors() const { return errors_; }
  [[nodiscard]] std::size_t parked() const { return parked_; }
  // There is something to collect now.
  [[nodiscard]] bool due(TimePoint now, bool only_urgent) const;
  [[nodiscard]] std::optional<TimePoint> next_retry() const;

  // Rows [0, count) exist from now on; new ones are realised.
  void grow(RowIndex count) { entries_.grow(count); }

 private:
  using NodeId = std::uint32_t;  // a row, or kInFlightNode + a slot of the round
  static constexpr NodeId kNone = UINT32_MAX;
  static constexpr NodeId kInFlightNode = 0x80000000U;

  enum class Phase : std::uint8_t {
    kRealised,
    kNew,       // its newest state is to be attempted for the first time
    kInFlight,  // in the batch of the round
    kRetry,     // waits for its time
    kParked,    // waits for room in its target, and slowly for its time
    kFailed,    // waits for a change
  };

  struct Node {
    Revision revision = 0;
    NodeId previous = kNone;
    NodeId next = kNone;
  };

  struct Entry {
    Node node;
    TimePoint since{};          // realised, or not: then since the commit of node.revision
    std::uint32_t aux = kNone;  // its failure; in flight its slot
    Phase phase = Phase::kRealised;
    bool newest_failed : 1 = false;  // an attempt at the newest state has failed
    bool urgent : 1 = false;         // stands in urgent_
    bool out_of_order : 1 = false;   // stands in out_of_order_ rather than in the list
    bool held : 1 = false;           // the target holds an element, whatever its value
    std::uint16_t seen_in = 0;       // the last scan that saw it
  };
  static_assert(sizeof(Entry) == 32);

  struct Failure {
    OperationError error;
    RowIndex row = 0;
    std::uint32_t attempts = 0;
    std::uint32_t heap_position = UINT32_MAX;
    TimePoint next_retry{};
    TimePoint state_since{};  // in the row's present state, which is not "done"
    TargetId target = 0;
    std::uint32_t older = kNone;  // neighbours among all failures
    std::uint32_t newer = kNone;
    std::uint32_t parked_previous = kNone;  // neighbours in the target's queue of parked rows
    std::uint32_t parked_next = kNone;
  };

  struct Slot {  // one row of the round
    RowIndex row = 0;
    std::uint32_t failure = kNone;
    bool changed = false;  // `later` is in the list
    Node later;            // the first change after the attempt began
    TimePoint changed_at{};
  };

  struct NewWork {
    RowIndex row = 0;
    std::uint32_t revision = 0;  // the low half of the node's
  };

  struct ParkedQueue {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };

  struct HeapPosition {
    std::vector<Failure>* failures;
    std::uint32_t& operator()(std::uint32_t failure) const {
      return (*failures)[failure].heap_position;
    }
  };

  [[nodiscard]] Entry& entry(RowIndex row) { return entries_[row]; }
  [[nodiscard]] const Entry& entry(RowIndex row) const { return entries_[row]; }
  [[nodiscard]] Node& node(NodeId id) {
    return id & kInFlightNode ? slots_[id & ~kInFlightNode].later : entry(id).node;
  }
  [[nodiscard]] static RowState state_of(const Entry& entry);
  [[nodiscard]] std::uint32_t failure_of(const Entry& entry) const;

  // The only place where phase and newest_failed change: keeps the counts and the times right.
  void transition(Entry& entry, Phase phase, bool newest_failed, TimePoint now);

  void append(RowIndex row, NodeId id, Revision revision);
  [[nodiscard]] bool is_current(const NewWork& work) const;
  // The revision of a change to the row during the attempt that is under way, if that is it.
  [[nodiscard]] std::optional<Revision> later_revision(const NewWork& work) const;
  void unlink(NodeId id);
  void take_place(RowIndex row, NodeId later);
  void leave_unreconciled(RowIndex row);

  void take(RowIndex row, TimePoint now, std::vector<RowIndex>& batch);
  void collect_repairs(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch);
  void collect_retries(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch);
  void collect_new(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch);

  std::uint32_t make_failure(RowIndex row);
  void drop_failure(std::uint32_t failure);
  void schedule(std::uint32_t failure, TimePoint when);
  [[nodiscard]] Duration backoff(std::uint32_t attempts, Duration min, Duration max);
  [[nodiscard]] std::uint64_t random();
  void park(std::uint32_t failure);
  void unpark(std::uint32_t failure);

  Options options_;
  std::uint64_t random_state_;
  ChunkedArray<Entry> entries_;

  NodeId head_ = kNone;
  NodeId tail_ = kNone;
  // What the list has of kNew, in order; besides, what was that. Beside the list because walking a
  // list waits for memory at each step.
  mutable std::deque<NewWork> new_work_;
  std::set<std::pair<Revision, RowIndex>> out_of_order_;

  std::deque<RowIndex> urgent_;
  std::deque<RowIndex> repairs_;  // new work that stands in out_of_order_
  std::vector<Slot> slots_;

  std::vector<Failure> failures_;
  std::vector<std::uint32_t> free_failures_;
  std::uint32_t oldest_failure_ = kNone;
  std::uint32_t newest_failure_ = kNone;
  IndexedHeap<HeapPosition> retry_heap_;
  std::vector<ParkedQueue> parked_queues_;          // by target
  std::set<std::pair<Revision, RowIndex>> failed_;  // permanently

  std::size_t pending_ = 0;
  std::size_t errors_ = 0;
  std::size_t parked_ = 0;
  std::uint16_t scan_generation_ = 0;
};

}  // namespace mapgate::reconciler::detail
