// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <mapgate/reconciler/detail/follower.h>
#include <mapgate/reconciler/gate.h>
#include <mapgate/reconciler/operations.h>
#include <mapgate/reconciler/options.h>
#include <mapgate/reconciler/staggered.h>
#include <mapgate/reconciler/table.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler {

struct StepResult {
  bool more = false;              // there is work due: call again at once
  std::optional<TimePoint> next;  // else call again then, or when woken
  std::size_t operations = 0;     // that this step carried out
};

// How comparing the whole target with the table went.
struct ResyncStatus {
  bool running = false;
  bool requested = false;       // waits for its turn, for a source, or for a retry
  std::uint64_t completed = 0;  // runs that reached the end
  std::uint64_t failed = 0;     // runs that did not
  // Of all runs, in rows: found right and taken as done without a write; found wrong or missing and
  // written again; found without being desired and deleted.
  std::uint64_t adopted = 0;
  std::uint64_t repaired = 0;
  std::uint64_t removed = 0;
  std::uint64_t unknown = 0;  // entries that the last complete run left alone, see remove_unknown
  std::optional<OperationError> error;  // of the last run, until one completes
};

struct Progress {
  Epoch epoch;
  Revision revision = 0;
  Revision lowest_unreconciled = 1;
  Revision lowest_never_attempted = 1;  // like it, of the revisions without any attempt
  std::optional<TimePoint>
      oldest_unreconciled;  // when that of lowest_unreconciled was committed, or found missing
  std::size_t rows = 0;     // pending + done + errors
  std::size_t pending = 0;  // RowState::kPending and so on
  std::size_t done = 0;
  std::size_t errors = 0;
  std::size_t parked = 0;  // of the errors: wait for room
  std::size_t open_gates = 0;
  ResyncStatus resync;
};

// Brings a target to what a table says, and knows for every row whether the target has it.
//
// Passive: the driver calls step() whenever woken, when StepResult says so, and again while it says
// more. step() belongs to one thread at a time; everything else may be called from any thread.
// Construct and destroy it while no other thread uses the table. The gates that are open when it is
// destroyed end with kShuttingDown, their callbacks run by the destructor.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class Reconciler {
 public:
  using TableType = Table<Key, Value, Hash>;
  using RowVisitor =
      std::function<void(const Key&, const std::optional<Value>&, Revision, const RowStatus&)>;

  // Throws std::invalid_argument with Options::problem().
  Reconciler(TableType& table, Operations<Key, Value>& operations, const Options& options = {})
      : table_(table),
        operations_(operations),
        options_(checked(options)),
        follower_(options),
        only_urgent_(options.start_with_resync) {
    resync_.requested = options.start_with_resync;
    const std::lock_guard lock(table_.mutex_);
    follower_.ledger.grow(table_.rows_.size());
    for (RowIndex row = table_.oldest_; row != TableType::kNone; row = table_.rows_[row].next) {
      const auto& stored = table_.rows_[row];
      if (stored.kind == TableType::Kind::kRow)
        follower_.ledger.changed(row, stored.revision, TimePoint{});
    }
    table_.followers_.push_back(&follower_);
  }

  ~Reconciler() {
    {
      const std::lock_guard lock(table_.mutex_);
      follower_.gates.shut_down();
      std::erase(table_.followers_, &follower_);
      for (RowIndex row = 0; row < table_.rows_.size(); ++row) {
        if (is_row(row)) table_.release_if_confirmed(row);
      }
    }
    run_finished_gates();
  }
  Reconciler(const Reconciler&) = delete;
  Reconciler& operator=(const Reconciler&) = delete;

  // `wakeup` is called, outside of every lock and from any thread, when there is something to do
  // for step(). At most once between two steps. Set it before other threads use the table.
  void set_wakeup(std::function<void()> wakeup) { follower_.wakeup = std::move(wakeup); }

  // Ends gates that are due; carries out a batch of the rows that somebody waits for, and runs the
  // callbacks of the gates that ended; carries out a batch of the others, looks at one slice of a
  // resync, and does so again. `budget` holds at least 1 of each.
  StepResult step(TimePoint now, const Budget& budget = {}) {
    assert(budget.new_work > 0 && budget.retries > 0);
    follower_.awake.store(false);
    std::size_t operations = 0;
    if (collect_urgent(now, limited(budget))) {
      operations += carry_out_batch(now);
      run_finished_gates();
    }
    collect_others(now, limited(budget));
    operations += carry_out_batch(now);
    advance_resync(now);
    open_revision_gates();
    run_finished_gates();
    return outlook(now, operations);
  }

  // The smallest revision that the target does not hold; the next one when it holds everything.
  [[nodiscard]] Revision lowest_unreconciled() const {
    const std::lock_guard lock(table_.mutex_);
    return watermark();
  }

  [[nodiscard]] Progress progress() const {
    const std::lock_guard lock(table_.mutex_);
    const detail::Ledger& ledger = follower_.ledger;
    Progress progress{.epoch = table_.epoch_,
                      .revision = table_.revision_,
                      .lowest_unreconciled = watermark(),
                      .lowest_never_attempted = ledger.lowest_never_attempted(table_.revision_ + 1),
                      .oldest_unreconciled = ledger.oldest_unreconciled(),
                      .rows = table_.index_.size(),
                      .pending = ledger.pending(),
                      .done = table_.index_.size() - ledger.pending() - ledger.errors(),
                      .errors = ledger.errors(),
                      .parked = ledger.parked(),
                      .open_gates = follower_.gates.open(),
                      .resync = resync_};
    progress.resync.running = phase_ != ResyncPhase::kIdle;
    return progress;
  }

  // Rows whose last attempt failed, in the order in which they began to fail, up to `max` of them.
  [[nodiscard]] std::vector<std::pair<Key, RowStatus>> first_errors(std::size_t max) const {
    const std::lock_guard lock(table_.mutex_);
    std::vector<std::pair<Key, RowStatus>> errors;
    for (const RowIndex row : follower_.ledger.first_errors(max)) {
      const auto& stored = table_.rows_[row];
      errors.emplace_back(stored.key, follower_.ledger.status(row, stored.erased));
    }
    return errors;
  }

  // A gate that opens once everything up to `revision` is realised.
  [[nodiscard]] GateTicket wait_for_revision(const Epoch& epoch, Revision revision,
                                             std::optional<TimePoint> deadline,
                                             GateCallback callback) {
    if (epoch != table_.epoch_) return std::unexpected(GateRefusal::kOtherEpoch);
    std::unique_lock lock(table_.mutex_);
    if (revision > table_.revision_) return std::unexpected(GateRefusal::kFutureRevision);
    if (watermark() > revision) return GateResult{};
    if (follower_.gates.is_shut_down()) return shutting_down();
    if (const auto failed = follower_.ledger.lowest_failed(); failed && failed->first <= revision) {
      return permanently_failed(failed->second);
    }
    const bool earliest = is_earliest(deadline);
    return opened(follower_.gates.add(revision, deadline, std::move(callback)), earliest, lock);
  }

  // A gate that opens once the target holds each row of `keys` in the state that it has now, or a
  // later one. A key that is no row holds already; an erased row waits for the deletion.
  [[nodiscard]] GateTicket wait_for_rows(std::span<const Key> keys,
                                         std::optional<TimePoint> deadline, GateCallback callback) {
    std::unique_lock lock(table_.mutex_);
    std::vector<detail::GateBook::AwaitedRow> missing;
    for (const Key& key : keys) {
      const RowIndex row = table_.find_row(key);
      if (row == TableType::kNone || follower_.ledger.realised(row)) continue;
      if (*follower_.ledger.first_unreconciled(row) > table_.rows_[row].revision) continue;
      if (follower_.ledger.permanent_error(row)) return permanently_failed(row);
      missing.push_back({row, table_.rows_[row].revision, table_.rows_[row].erased});
    }
    if (missing.empty()) return GateResult{};
    if (follower_.gates.is_shut_down()) return shutting_down();
    const bool earliest = is_earliest(deadline);
    const auto gate = follower_.gates.add(missing, deadline, std::move(callback));
    if (gate) {
      for (const auto& awaited : missing) follower_.ledger.mark_urgent(awaited.row);
    }
    return opened(gate, earliest, lock);
  }

  // The gate ends with kCancelled. False: it has ended already.
  bool cancel(GateId gate) {
    {
      const std::lock_guard lock(table_.mutex_);
      if (!follower_.gates.cancel(gate)) return false;
    }
    follower_.wake();
    return true;
  }

  // Every open gate ends with kShuttingDown at the next step; later ones that would have to wait,
  // at once.
  void shut_down() {
    {
      const std::lock_guard lock(table_.mutex_);
      follower_.gates.shut_down();
    }
    follower_.wake();
  }

  // Rows that failed permanently in `target`, or found no room in it, are tried again: it is not
  // what it was.
  void target_changed(TargetId target) {
    {
      const std::lock_guard lock(table_.mutex_);
      follower_.ledger.target_changed(target);
    }
    follower_.wake();
  }

  // None: `key` is no row, and the target holds nothing.
  [[nodiscard]] std::optional<RowStatus> status(const Key& key) const {
    const std::lock_guard lock(table_.mutex_);
    const RowIndex row = table_.find_row(key);
    if (row == TableType::kNone) return std::nullopt;
    return follower_.ledger.status(row, table_.rows_[row].erased);
  }

  // Visits up to `max` places for rows from place `from` on, with the table locked: `visit` must
  // not call back. Returns the next place, none at the end. Rows that stay are seen once; no order
  // is promised.
  std::optional<std::size_t> list(std::size_t from, std::size_t max,
                                  const RowVisitor& visit) const {
    const std::lock_guard lock(table_.mutex_);
    const std::size_t end = std::min<std::size_t>(table_.rows_.size(), from + max);
    for (std::size_t place = from; place < end; ++place) {
      const auto row = static_cast<RowIndex>(place);
      const auto& stored = table_.rows_[row];
      if (!is_row(row)) continue;
      const auto value = stored.erased ? std::nullopt : std::optional<Value>(stored.value);
      visit(stored.key, value, stored.revision, follower_.ledger.status(row, stored.erased));
    }
    if (end == table_.rows_.size()) return std::nullopt;
    return end;
  }

  // Compares the whole target with the table, in slices of later steps: values that are right are
  // taken as done without a write, wrong ones written again, unknown ones deleted. Starts once
  // every source of the table is complete; a failure stays in progress() and is retried. Asked for
  // while one runs, another follows.
  void request_resync() {
    {
      const std::lock_guard lock(table_.mutex_);
      resync_.requested = true;
    }
    follower_.wake();
  }

 private:
  using RowIndex = detail::RowIndex;
  using Entry = std::pair<Key, Value>;  // of the target
  enum class ResyncPhase : std::uint8_t { kIdle, kScanning, kSweeping };

  static const Options& checked(const Options& options) {
    if (const char* problem = options.problem()) throw std::invalid_argument(problem);
    return options;
  }

  [[nodiscard]] bool is_row(RowIndex row) const {
    return table_.rows_[row].kind == TableType::Kind::kRow;
  }

  [[nodiscard]] Revision watermark() const {
    return follower_.ledger.lowest_unreconciled(table_.revision_ + 1);
  }

  [[nodiscard]] static GateResult shutting_down() {
    return {.outcome = GateOutcome::kShuttingDown};
  }
  [[nodiscard]] GateResult permanently_failed(RowIndex row) const {
    return {.outcome = GateOutcome::kFailed, .error = *follower_.ledger.permanent_error(row)};
  }
  [[nodiscard]] bool is_earliest(std::optional<TimePoint> deadline) const {
    const auto earliest = follower_.gates.next_deadline();
    return deadline && (!earliest || *deadline < *earliest);
  }
  // The driver has to know of a deadline earlier than those it waits for.
  GateTicket opened(std::optional<GateId> gate, bool earliest,
                    std::unique_lock<detail::TableMutex>& lock) {
    lock.unlock();
    if (!gate) return std::unexpected(GateRefusal::kTooMany);
    if (earliest) follower_.wake();
    return *gate;
  }

  [[nodiscard]] Budget limited(const Budget& budget) const {
    const std::size_t limit = operations_.batch_limit();
    return {std::min(budget.new_work, limit), std::min(budget.retries, limit)};
  }

  // False: nobody waits for a row that could be attempted.
  [[nodiscard]] bool collect_urgent(TimePoint now, const Budget& budget) {
    const std::lock_guard lock(driver_side_);
    follower_.gates.expire(now);
    if (!follower_.ledger.collect_urgent(now, budget.new_work, batch_rows_)) return false;
    fill_batch();
    return true;
  }
  void collect_others(TimePoint now, const Budget& budget) {
    const std::lock_guard lock(driver_side_);
    follower_.ledger.collect_others(now, budget, only_urgent_, batch_rows_);
    fill_batch();
  }
  void fill_batch() {
    batch_.clear();
    staggered(
        batch_rows_.size(), [&](std::size_t i) { table_.prefetch(batch_rows_[i]); },
        [&](std::size_t i) {
          const auto& stored = table_.rows_[batch_rows_[i]];
          auto& operation = batch_.emplace_back();
          operation.key = stored.key;
          if (!stored.erased) operation.value = stored.value;
          operation.held = follower_.ledger.held(batch_rows_[i]);
        });
  }

  std::size_t carry_out_batch(TimePoint now) {
    if (batch_.empty()) return 0;
    results_.assign(batch_.size(), {});
    operations_.apply(batch_, results_);
    settle(now);
    return batch_.size();
  }

  void settle(TimePoint now) {
    freed_.clear();
    const std::lock_guard lock(driver_side_);
    staggered(
        batch_rows_.size(),
        [&](std::size_t i) {  // of rows that will be released
          if (!batch_[i].value) table_.index_.prefetch(TableType::hash_of(batch_[i].key));
        },
        [&](std::size_t i) {
          if (results_[i].error) {
            settle_failure(batch_rows_[i], results_[i], now);
          } else {
            settle_success(batch_rows_[i], batch_[i].value.has_value(), results_[i], now);
          }
        });
    for (std::size_t target = 0; target < freed_.size(); ++target) {
      follower_.ledger.room_freed(static_cast<TargetId>(target), freed_[target], now);
    }
  }

  void settle_success(RowIndex row, bool held, const OperationResult& result, TimePoint now) {
    if (result.freed) {
      if (freed_.size() <= result.target) freed_.resize(result.target + std::size_t{1});
      ++freed_[result.target];
    }
    follower_.ledger.succeeded(row, held, now);
    const auto first_unreconciled = follower_.ledger.first_unreconciled(row);
    follower_.gates.row_realised(row, first_unreconciled);
    if (!first_unreconciled) {
      table_.release_if_confirmed(row);
    } else if (follower_.gates.waits_for(row)) {
      follower_.ledger.mark_urgent(row);
    }
  }

  void settle_failure(RowIndex row, OperationResult& result, TimePoint now) {
    const bool target_lost = result.error->error_class == ErrorClass::kTargetLost;
    if (follower_.ledger.failed(row, std::move(*result.error), result.target, now)) {
      follower_.gates.row_failed(row, *follower_.ledger.first_unreconciled(row),
                                 *follower_.ledger.permanent_error(row));
    }
    if (target_lost) resync_.requested = true;
  }

  void open_revision_gates() {
    const std::lock_guard lock(driver_side_);
    follower_.gates.watermark_at(watermark());
  }

  void run_finished_gates() {
    std::vector<detail::GateBook::Finished> finished;
    {
      const std::lock_guard lock(driver_side_);
      follower_.gates.take_finished(finished);
    }
    run(finished);
  }
  static void run(std::vector<detail::GateBook::Finished>& finished) noexcept {
    for (auto& [callback, result] : finished) {
      if (callback) callback(std::move(result));
    }
  }

  // What is due now, and what is next, the work of this round's callbacks included.
  [[nodiscard]] StepResult outlook(TimePoint now, std::size_t operations) const {
    const std::lock_guard lock(driver_side_);
    StepResult result{.operations = operations};
    result.more = follower_.ledger.due(now, only_urgent_) || follower_.gates.has_finished() ||
                  phase_ != ResyncPhase::kIdle || resync_due(now);
    for (const auto time :
         {follower_.ledger.next_retry(), follower_.gates.next_deadline(), next_resync()}) {
      if (time && (!result.next || *time < *result.next)) result.next = time;
    }
    return result;
  }

  // --- resync: the members below are the driver's, resync_ is guarded by the table's lock
  // ----------------

  [[nodiscard]] std::optional<TimePoint> next_resync() const {
    if (phase_ != ResyncPhase::kIdle || !table_.sources_complete()) return std::nullopt;
    if (resync_.requested) return resync_not_before_;
    if (!options_.resync_interval || !last_resync_) return std::nullopt;
    return *last_resync_ + *options_.resync_interval;
  }
  [[nodiscard]] bool resync_due(TimePoint now) const {
    const auto next = next_resync();
    return next && *next <= now;
  }

  void advance_resync(TimePoint now) {
    switch (phase_) {
      case ResyncPhase::kIdle:
        return begin_resync(now);
      case ResyncPhase::kScanning:
        return scan_slice(now);
      case ResyncPhase::kSweeping:
        return sweep_slice(now);
    }
  }

  void begin_resync(TimePoint now) {
    {
      const std::lock_guard lock(driver_side_);
      if (!resync_due(now)) return;
      resync_.requested = false;
      follower_.ledger.begin_scan();
    }
    if (auto begun = operations_.scan_begin(); !begun)
      return resync_failed(std::move(begun.error()), now);
    phase_ = ResyncPhase::kScanning;
    unknown_ = 0;
  }

  void scan_slice(TimePoint now) {
    found_.clear();
    auto at_end = operations_.scan_next(options_.resync_slice, found_);
    if (!at_end) return resync_failed(std::move(at_end.error()), now);
    hashes_.clear();
    for (const auto& [key, value] : found_) hashes_.push_back(TableType::hash_of(key));
    const std::lock_guard lock(driver_side_);
    compare_found(now);
    if (*at_end) {
      only_urgent_ = false;
      phase_ = ResyncPhase::kSweeping;
      sweep_next_ = 0;
    }
  }

  void compare_found(TimePoint now) {
    staggered(
        found_.size(), [&](std::size_t i) { table_.index_.prefetch(hashes_[i]); },
        [&](std::size_t i) {
          const RowIndex row = table_.guess_row(hashes_[i]);
          if (row == TableType::kNone) return;
          table_.prefetch(row);
          follower_.ledger.prefetch(row);
        },
        [&](std::size_t i) {
          const RowIndex row = table_.guess_row(hashes_[i]);
          if (row != TableType::kNone) follower_.ledger.prefetch_neighbours(row);
        },
        [&](std::size_t i) {
          const auto& [key, value] = found_[i];
          compare(table_.find_row(key, hashes_[i]), key, value, now);
        });
  }

  void compare(RowIndex row, const Key& key, const Value& value, TimePoint now) {
    const bool wanted = row != TableType::kNone && !table_.rows_[row].erased;
    if (!wanted && operations_.is_absence(key, value)) return;
    if (row == TableType::kNone) {
      if (!options_.remove_unknown) {
        ++unknown_;
        return;
      }
      follower_.ledger.found(table_.erase_unknown(key, now));
      ++resync_.removed;
      return;
    }
    follower_.ledger.found(row);
    const auto& stored = table_.rows_[row];
    const bool right = wanted && stored.value == value;
    if (!right && follower_.ledger.realised(row)) {
      follower_.ledger.drifted(row, stored.revision, now);
      ++(stored.erased ? resync_.removed : resync_.repaired);
    } else if (right && follower_.ledger.adopt(row, now)) {
      ++resync_.adopted;
      follower_.gates.row_realised(row, std::nullopt);
    }
  }

  // Realised rows that the scan has not seen are missing in the target.
  void sweep_slice(TimePoint now) {
    const std::lock_guard lock(driver_side_);
    const auto end = static_cast<RowIndex>(
        std::min<std::size_t>(table_.rows_.size(), sweep_next_ + options_.resync_slice));
    for (; sweep_next_ < end; ++sweep_next_) {
      const auto& stored = table_.rows_[sweep_next_];
      if (!is_row(sweep_next_) || follower_.ledger.seen(sweep_next_)) continue;
      follower_.ledger.not_found(sweep_next_);
      if (stored.erased || !follower_.ledger.realised(sweep_next_)) continue;
      follower_.ledger.drifted(sweep_next_, stored.revision, now);
      ++resync_.repaired;
    }
    if (sweep_next_ < table_.rows_.size()) return;
    phase_ = ResyncPhase::kIdle;
    last_resync_ = now;
    resync_failures_ = 0;
    ++resync_.completed;
    resync_.unknown = unknown_;
    resync_.error.reset();
  }

  void resync_failed(OperationError error, TimePoint now) {
    const std::lock_guard lock(driver_side_);
    phase_ = ResyncPhase::kIdle;
    only_urgent_ = false;
    ++resync_.failed;
    resync_.error = std::move(error);
    resync_.requested = true;
    const int doublings = std::min(resync_failures_++, 20);
    resync_not_before_ =
        now + std::min(options_.retry.max, options_.retry.min * (std::int64_t{1} << doublings));
  }

  TableType& table_;
  mutable detail::DriverSide driver_side_{table_.mutex_};
  Operations<Key, Value>& operations_;
  const Options options_;
  detail::Follower follower_;

  std::vector<RowIndex> batch_rows_;
  std::vector<Operation<Key, Value>> batch_;
  std::vector<OperationResult> results_;
  std::vector<std::size_t> freed_;  // by target

  bool only_urgent_;  // until the first scan has ended
  ResyncPhase phase_ = ResyncPhase::kIdle;
  ResyncStatus resync_;
  RowIndex sweep_next_ = 0;
  std::uint64_t unknown_ = 0;  // seen by the scan that is running
  int resync_failures_ = 0;
  TimePoint resync_not_before_{};
  std::optional<TimePoint> last_resync_;
  std::vector<Entry> found_;
  std::vector<std::uint32_t> hashes_;  // of found_
};

}  // namespace mapgate::reconciler
