// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/detail/ledger.h>

#include <algorithm>
#include <cassert>

namespace mapgate::reconciler {

const char* Options::problem() const {
  for (const Backoff& backoff : {retry, parked}) {
    if (backoff.min <= Duration::zero()) return "a backoff's min is not positive";
    if (backoff.max < backoff.min) return "a backoff's max is below its min";
  }
  if (!(jitter >= 0 && jitter <= 1)) return "jitter is not within 0 and 1";
  if (max_gates == 0) return "max_gates is 0";
  if (resync_slice == 0) return "resync_slice is 0";
  if (resync_interval && *resync_interval <= Duration::zero())
    return "resync_interval is not positive";
  return nullptr;
}

}  // namespace mapgate::reconciler

namespace mapgate::reconciler::detail {
namespace {

constexpr std::size_t kFewNewWork = 1024;

}  // namespace

Ledger::Ledger(const Options& options)
    : options_(options), random_state_(options.seed), retry_heap_(HeapPosition{&failures_}) {}

// --- commits
// -------------------------------------------------------------------------------------------

void Ledger::changed(RowIndex row, Revision revision, TimePoint now) {
  Entry& changed_entry = entry(row);
  switch (changed_entry.phase) {
    case Phase::kRealised:
      append(row, row, revision);
      transition(changed_entry, Phase::kNew, false, now);
      return;
    case Phase::kNew:
      return;
    case Phase::kInFlight: {
      Slot& slot = slots_[changed_entry.aux];
      if (!slot.changed) {
        slot.changed = true;
        slot.changed_at = now;
        append(row, kInFlightNode | changed_entry.aux, revision);
      }
      transition(changed_entry, Phase::kInFlight, false, now);
      return;
    }
    case Phase::kRetry:  // its target is in trouble, not the row's state: the delay stands
      transition(changed_entry, Phase::kRetry, false, now);
      return;
    case Phase::kParked:
      unpark(changed_entry.aux);
      break;
    case Phase::kFailed:
      failed_.erase({changed_entry.node.revision, row});
      break;
  }
  schedule(changed_entry.aux, now);
  transition(changed_entry, Phase::kRetry, false, now);
}

void Ledger::prefetch_neighbours(RowIndex row) const {
  if (realised(row)) return;
  for (const NodeId neighbour : {entry(row).node.previous, entry(row).node.next}) {
    if (!(neighbour & kInFlightNode)) prefetch(neighbour);
  }
}

void Ledger::mark_urgent(RowIndex row) {
  Entry& waited = entry(row);
  if (waited.phase != Phase::kNew || waited.urgent) return;
  waited.urgent = true;
  urgent_.push_back(row);
}

// --- the driver's rounds
// -------------------------------------------------------------------------------

bool Ledger::collect_urgent(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch) {
  slots_.clear();
  batch.clear();
  while (batch.size() < limit && !urgent_.empty()) {
    const RowIndex row = urgent_.front();
    urgent_.pop_front();
    Entry& waited = entry(row);
    if (!waited.urgent) continue;
    waited.urgent = false;
    if (waited.phase == Phase::kNew) take(row, now, batch);
  }
  return !batch.empty();
}

void Ledger::collect_others(TimePoint now, const Budget& budget, bool only_urgent,
                            std::vector<RowIndex>& batch) {
  slots_.clear();
  batch.clear();
  collect_repairs(now, budget.new_work, batch);
  const std::size_t repairs = batch.size();
  collect_retries(now, budget.retries, batch);
  const std::size_t retries = batch.size() - repairs;
  if (!only_urgent) collect_new(now, budget.new_work - repairs, batch);
  if (retries == 0) return;
  const auto by_revision = [this](RowIndex a, RowIndex b) {
    return entry(a).node.revision < entry(b).node.revision;
  };
  const auto first_retry = batch.begin() + static_cast<std::ptrdiff_t>(repairs);
  const auto first_new = first_retry + static_cast<std::ptrdiff_t>(retries);
  std::sort(first_retry, first_new, by_revision);
  std::inplace_merge(first_retry, first_new, batch.end(), by_revision);
}

void Ledger::collect_repairs(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch) {
  while (batch.size() < limit && !repairs_.empty()) {
    const RowIndex row = repairs_.front();
    repairs_.pop_front();
    const Entry& repaired = entry(row);
    if (repaired.out_of_order && repaired.phase == Phase::kNew) take(row, now, batch);
  }
}

void Ledger::collect_retries(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch) {
  for (std::size_t taken = 0; taken < limit; ++taken) {
    if (retry_heap_.empty() || retry_heap_.top_time() > now) return;
    const std::uint32_t failure = retry_heap_.top();
    retry_heap_.remove(failure);
    const RowIndex row = failures_[failure].row;
    if (entry(row).phase == Phase::kParked) unpark(failure);
    take(row, now, batch);
  }
}

void Ledger::collect_new(TimePoint now, std::size_t limit, std::vector<RowIndex>& batch) {
  constexpr std::size_t kAhead = 16;
  for (std::size_t taken = 0; taken < limit && !new_work_.empty();) {
    if (new_work_.size() > kAhead) prefetch(new_work_[kAhead].row);
    const NewWork work = new_work_.front();
    new_work_.pop_front();
    if (!is_current(work)) continue;
    take(work.row, now, batch);
    ++taken;
  }
}

void Ledger::take(RowIndex row, TimePoint now, std::vector<RowIndex>& batch) {
  Entry& taken = entry(row);
  taken.urgent = false;
  slots_.push_back({.row = row, .failure = taken.aux, .changed = false, .later = {}});
  taken.aux = static_cast<std::uint32_t>(slots_.size() - 1);
  transition(taken, Phase::kInFlight, taken.newest_failed, now);
  batch.push_back(row);
}

void Ledger::succeeded(RowIndex row, bool held, TimePoint now) {
  Entry& done = entry(row);
  assert(done.phase == Phase::kInFlight);
  done.held = held;
  const std::uint32_t slot = std::exchange(done.aux, kNone);
  if (slots_[slot].failure != kNone) drop_failure(slots_[slot].failure);
  done.seen_in = scan_generation_;
  if (slots_[slot].changed) {
    take_place(row, kInFlightNode | slot);
    transition(done, Phase::kNew, false, now);
    done.since = slots_[slot].changed_at;
  } else {
    leave_unreconciled(row);
    transition(done, Phase::kRealised, false, now);
  }
}

bool Ledger::failed(RowIndex row, OperationError error, TargetId target, TimePoint now) {
  Entry& failing = entry(row);
  assert(failing.phase == Phase::kInFlight);
  Slot& slot = slots_[failing.aux];
  const bool changed = slot.changed;
  if (changed) unlink(kInFlightNode | failing.aux);  // the row keeps its older place
  const std::uint32_t index = slot.failure != kNone ? slot.failure : make_failure(row);
  failing.aux = index;
  const ErrorClass error_class = error.error_class;
  Failure& failure = failures_[index];
  failure.error = std::move(error);
  failure.target = target;
  ++failure.attempts;

  if (error_class == ErrorClass::kTransient || error_class == ErrorClass::kTargetLost) {
    schedule(index, now + backoff(failure.attempts, options_.retry.min, options_.retry.max));
    transition(failing, Phase::kRetry, !changed, now);
    return false;
  }
  if (changed) {  // what failed is not what the row holds now
    schedule(index, now);
    transition(failing, Phase::kRetry, false, now);
    return false;
  }
  if (error_class == ErrorClass::kCapacity) {
    park(index);
    schedule(index, now + backoff(failure.attempts, options_.parked.min, options_.parked.max));
    transition(failing, Phase::kParked, true, now);
    return false;
  }
  failed_.insert({failing.node.revision, row});
  transition(failing, Phase::kFailed, true, now);
  return true;
}

void Ledger::room_freed(TargetId target, std::size_t count, TimePoint now) {
  if (target >= parked_queues_.size()) return;
  for (; count > 0 && parked_queues_[target].head != kNone; --count) {
    const std::uint32_t failure = parked_queues_[target].head;
    unpark(failure);
    schedule(failure, now);
    Entry& woken = entry(failures_[failure].row);
    transition(woken, Phase::kRetry, woken.newest_failed, now);
  }
}

void Ledger::target_changed(TargetId target) {
  for (auto row = failed_.begin(); row != failed_.end();) {
    Entry& failing = entry(row->second);
    if (failures_[failing.aux].target != target) {
      ++row;
      continue;
    }
    schedule(failing.aux, TimePoint{});
    transition(failing, Phase::kRetry, failing.newest_failed, failing.since);
    row = failed_.erase(row);
  }
  while (target < parked_queues_.size() && parked_queues_[target].head != kNone) {
    const std::uint32_t failure = parked_queues_[target].head;
    unpark(failure);
    schedule(failure, TimePoint{});
    Entry& parked = entry(failures_[failure].row);
    transition(parked, Phase::kRetry, parked.newest_failed, parked.since);
  }
}

// --- resync
// --------------------------------------------------------------------------------------------

void Ledger::begin_scan() {
  ++scan_generation_;
  if (scan_generation_ == 0) scan_generation_ = 1;  // 0 is "never seen"
}

bool Ledger::adopt(RowIndex row, TimePoint now) {
  Entry& adopted = entry(row);
  assert(adopted.phase != Phase::kInFlight);
  if (adopted.phase == Phase::kRealised) return false;
  if (adopted.phase == Phase::kParked) unpark(adopted.aux);
  if (adopted.phase == Phase::kFailed) failed_.erase({adopted.node.revision, row});
  if (adopted.aux != kNone) drop_failure(std::exchange(adopted.aux, kNone));
  leave_unreconciled(row);
  transition(adopted, Phase::kRealised, false, now);
  return true;
}

void Ledger::drifted(RowIndex row, Revision revision, TimePoint now) {
  Entry& wrong = entry(row);
  assert(wrong.phase == Phase::kRealised);
  wrong.node.revision = revision;
  wrong.out_of_order = true;
  out_of_order_.insert({revision, row});
  repairs_.push_back(row);
  transition(wrong, Phase::kNew, false, now);
}

// --- questions
// -----------------------------------------------------------------------------------------

std::optional<Revision> Ledger::first_unreconciled(RowIndex row) const {
  if (realised(row)) return std::nullopt;
  return entry(row).node.revision;
}

Revision Ledger::lowest_unreconciled(Revision next) const {
  // The head can be an in-flight row's second node: when the first one stands in out_of_order_.
  if (head_ != kNone) {
    next = head_ & kInFlightNode ? slots_[head_ & ~kInFlightNode].later.revision
                                 : entry(head_).node.revision;
  }
  if (!out_of_order_.empty()) next = std::min(next, out_of_order_.begin()->first);
  return next;
}

Revision Ledger::lowest_never_attempted(Revision next) const {
  for (; !new_work_.empty(); new_work_.pop_front()) {
    const NewWork& work = new_work_.front();
    if (is_current(work)) return entry(work.row).node.revision;
    if (const auto later = later_revision(work)) return *later;
  }
  return next;
}

std::optional<TimePoint> Ledger::oldest_unreconciled() const {
  std::optional<TimePoint> oldest;
  if (head_ != kNone) {
    oldest = head_ & kInFlightNode ? slots_[head_ & ~kInFlightNode].changed_at : entry(head_).since;
  }
  if (out_of_order_.empty()) return oldest;
  const TimePoint since = entry(out_of_order_.begin()->second).since;
  return oldest ? std::min(*oldest, since) : since;
}

std::vector<RowIndex> Ledger::first_errors(std::size_t max) const {
  std::vector<RowIndex> rows;
  for (std::uint32_t failure = oldest_failure_; failure != kNone && rows.size() < max;
       failure = failures_[failure].newer) {
    rows.push_back(failures_[failure].row);
  }
  return rows;
}

std::optional<std::pair<Revision, RowIndex>> Ledger::lowest_failed() const {
  if (failed_.empty()) return std::nullopt;
  return *failed_.begin();
}

RowStatus Ledger::status(RowIndex row, bool erased) const {
  const Entry& asked = entry(row);
  RowStatus status;
  status.state = state_of(asked);
  status.erased = erased;
  status.since = asked.since;
  status.first_unreconciled = first_unreconciled(row);
  if (const std::uint32_t index = failure_of(asked); index != kNone) {
    const Failure& failure = failures_[index];
    status.since = failure.state_since;
    RowError& error = status.error.emplace();
    error.error_class = failure.error.error_class;
    error.code = failure.error.code;
    error.text = failure.error.text;
    error.attempts = failure.attempts;
    if (failure.heap_position != UINT32_MAX) error.next_retry = failure.next_retry;
  }
  return status;
}

const OperationError* Ledger::permanent_error(RowIndex row) const {
  const Entry& asked = entry(row);
  return asked.phase == Phase::kFailed ? &failures_[asked.aux].error : nullptr;
}

bool Ledger::due(TimePoint now, bool only_urgent) const {
  if (!urgent_.empty() || !repairs_.empty()) return true;
  if (!new_work_.empty() && !only_urgent) return true;
  return !retry_heap_.empty() && retry_heap_.top_time() <= now;
}

std::optional<TimePoint> Ledger::next_retry() const {
  if (retry_heap_.empty()) return std::nullopt;
  return retry_heap_.top_time();
}

// --- states
// --------------------------------------------------------------------------------------------

RowState Ledger::state_of(const Entry& entry) {
  if (entry.phase == Phase::kRealised) return RowState::kDone;
  return entry.newest_failed ? RowState::kError : RowState::kPending;
}

std::uint32_t Ledger::failure_of(const Entry& entry) const {
  return entry.phase == Phase::kInFlight ? slots_[entry.aux].failure : entry.aux;
}

void Ledger::transition(Entry& entry, Phase phase, bool newest_failed, TimePoint now) {
  const auto count = [this](RowState state, Phase at, std::size_t by) {
    if (state == RowState::kPending) pending_ += by;
    if (state == RowState::kError) errors_ += by;
    if (at == Phase::kParked) parked_ += by;
  };
  const RowState before = state_of(entry);
  count(before, entry.phase, static_cast<std::size_t>(-1));
  entry.phase = phase;
  entry.newest_failed = newest_failed;
  const RowState after = state_of(entry);
  count(after, phase, 1);
  if (before == after) return;
  if (before == RowState::kDone || after == RowState::kDone) {
    entry.since = now;
  } else if (const std::uint32_t failure = failure_of(entry); failure != kNone) {
    failures_[failure].state_since = now;
  }
}

// --- the list of unreconciled rows
// ---------------------------------------------------------------------

void Ledger::append(RowIndex row, NodeId id, Revision revision) {
  node(id) = {.revision = revision, .previous = tail_, .next = kNone};
  (tail_ == kNone ? head_ : node(tail_).next) = id;
  tail_ = id;
  // While only urgent rows are attempted nothing leaves at the front.
  if (new_work_.size() > 2 * pending_ + kFewNewWork) {
    std::erase_if(new_work_, [this](const NewWork& work) {
      return !is_current(work) && !later_revision(work);
    });
  }
  // In place: copied as a whole right after both halves are stored, it waits for those stores.
  NewWork& work = new_work_.emplace_back();
  work.row = row;
  work.revision = static_cast<std::uint32_t>(revision);
}

bool Ledger::is_current(const NewWork& work) const {
  const Entry& asked = entry(work.row);
  return asked.phase == Phase::kNew && !asked.out_of_order &&
         static_cast<std::uint32_t>(asked.node.revision) == work.revision;
}

std::optional<Revision> Ledger::later_revision(const NewWork& work) const {
  const Entry& asked = entry(work.row);
  if (asked.phase != Phase::kInFlight || !slots_[asked.aux].changed) return std::nullopt;
  const Revision revision = slots_[asked.aux].later.revision;
  if (static_cast<std::uint32_t>(revision) != work.revision) return std::nullopt;
  return revision;
}

void Ledger::unlink(NodeId id) {
  const Node gone = node(id);
  (gone.previous == kNone ? head_ : node(gone.previous).next) = gone.next;
  (gone.next == kNone ? tail_ : node(gone.next).previous) = gone.previous;
}

// The attempt at the row's old state succeeded: it stands where its first later change stands.
void Ledger::take_place(RowIndex row, NodeId later) {
  leave_unreconciled(row);
  const Node place = node(later);
  entry(row).node = place;
  (place.previous == kNone ? head_ : node(place.previous).next) = row;
  (place.next == kNone ? tail_ : node(place.next).previous) = row;
}

void Ledger::leave_unreconciled(RowIndex row) {
  Entry& leaving = entry(row);
  if (leaving.out_of_order) {
    leaving.out_of_order = false;
    out_of_order_.erase({leaving.node.revision, row});
  } else {
    unlink(row);
  }
}

// --- failures
// ------------------------------------------------------------------------------------------

std::uint32_t Ledger::make_failure(RowIndex row) {
  std::uint32_t index;
  if (free_failures_.empty()) {
    index = static_cast<std::uint32_t>(failures_.size());
    failures_.emplace_back();
  } else {
    index = free_failures_.back();
    free_failures_.pop_back();
  }
  Failure& failure = failures_[index];
  failure.row = row;
  failure.state_since = entry(row).since;
  failure.older = newest_failure_;
  (newest_failure_ == kNone ? oldest_failure_ : failures_[newest_failure_].newer) = index;
  newest_failure_ = index;
  return index;
}

void Ledger::drop_failure(std::uint32_t failure) {
  retry_heap_.remove(failure);
  const Failure& gone = failures_[failure];
  (gone.older == kNone ? oldest_failure_ : failures_[gone.older].newer) = gone.newer;
  (gone.newer == kNone ? newest_failure_ : failures_[gone.newer].older) = gone.older;
  failures_[failure] = {};
  free_failures_.push_back(failure);
}

void Ledger::schedule(std::uint32_t failure, TimePoint when) {
  failures_[failure].next_retry = when;
  retry_heap_.set(failure, when);
}

Duration Ledger::backoff(std::uint32_t attempts, Duration min, Duration max) {
  Duration delay = min;
  for (std::uint32_t i = 1; i < attempts && delay < max; ++i)
    delay = delay > max / 2 ? max : delay * 2;
  const double fraction = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
  const auto drawn =
      static_cast<Duration::rep>(static_cast<double>(delay.count()) * options_.jitter * fraction);
  return std::max(min, delay - Duration(drawn));
}

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
std::uint64_t Ledger::random() {
  std::uint64_t z = (random_state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void Ledger::park(std::uint32_t failure) {
  const TargetId target = failures_[failure].target;
  if (target >= parked_queues_.size()) parked_queues_.resize(target + std::size_t{1});
  ParkedQueue& queue = parked_queues_[target];
  failures_[failure].parked_previous = queue.tail;
  failures_[failure].parked_next = kNone;
  (queue.tail == kNone ? queue.head : failures_[queue.tail].parked_next) = failure;
  queue.tail = failure;
}

void Ledger::unpark(std::uint32_t failure) {
  Failure& leaving = failures_[failure];
  ParkedQueue& queue = parked_queues_[leaving.target];
  (leaving.parked_previous == kNone ? queue.head : failures_[leaving.parked_previous].parked_next) =
      leaving.parked_next;
  (leaving.parked_next == kNone ? queue.tail : failures_[leaving.parked_next].parked_previous) =
      leaving.parked_previous;
  leaving.parked_previous = leaving.parked_next = kNone;
}

}  // namespace mapgate::reconciler::detail
