// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <mapgate/reconciler/reconciler.h>

namespace mapgate::reconciler::simulation {
namespace {

using namespace std::chrono_literals;

constexpr int kKeys = 10;
constexpr int kSides = 2;  // reconcilers that follow the table, each with its target
constexpr int kStepsToSettle = 20'000;

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << parts);
  throw Mismatch(text.str());
}

// --- the model: what the contracts say, without any cleverness
// --------------------------------------------

struct State {
  Revision revision;
  std::optional<int> value;
};

struct Need {
  int key;
  std::size_t states;  // as many of the row's states have to be realised
  bool erased;
};

struct Gate {
  std::optional<Revision> revision;
  std::vector<Need> needs;
  std::optional<TimePoint> deadline;
  std::optional<GateId> id;  // none: it ended at once
  std::optional<GateOutcome> expected;
  std::optional<GateOutcome> actual;
  int endings = 0;
};

// What the model knows of one reconciler: how many of each row's states are realised.
struct SideModel {
  std::map<int, std::size_t> applied;
  std::set<int> failed;   // permanently
  std::set<int> tainted;  // somebody else touched it in the target
  std::deque<Gate> gates;
  bool is_shut_down = false;
};

struct Model {
  Revision revision = 0;
  std::map<int, std::vector<State>> rows;  // every state since it became a row
  std::array<SideModel, kSides> sides;

  [[nodiscard]] bool live(int key) const { return rows.contains(key) && rows.at(key).back().value; }
  [[nodiscard]] bool realised(int side, int key) const {
    return sides[static_cast<std::size_t>(side)].applied.at(key) == rows.at(key).size();
  }
  [[nodiscard]] std::optional<Revision> first_unreconciled(int side, int key) const {
    if (realised(side, key)) return std::nullopt;
    return rows.at(key)[sides[static_cast<std::size_t>(side)].applied.at(key)].revision;
  }
  [[nodiscard]] Revision watermark(int side) const {
    Revision lowest = revision + 1;
    for (const auto& [key, states] : rows)
      lowest = std::min(lowest, first_unreconciled(side, key).value_or(lowest));
    return lowest;
  }

  Revision put(int key, int value) {
    if (live(key) && rows[key].back().value == value) return rows[key].back().revision;
    return change(key, value);
  }
  Revision erase(int key) {
    if (!rows.contains(key)) return 0;
    if (!live(key)) return rows[key].back().revision;
    for (SideModel& side : sides) {
      for (Gate& gate : side.gates) {
        const bool names_it = std::ranges::any_of(
            gate.needs, [&](const Need& need) { return need.key == key && !need.erased; });
        if (names_it) end(gate, GateOutcome::kWithdrawn);
      }
    }
    return change(key, std::nullopt);
  }
  Revision change(int key, std::optional<int> value) {
    rows[key].push_back({++revision, value});
    for (SideModel& side : sides) {
      side.applied.try_emplace(key, 0);
      side.failed.erase(key);
    }
    return revision;
  }

  static void end(Gate& gate, GateOutcome outcome) {
    if (!gate.expected) gate.expected = outcome;
  }
  void realise(int side, int key, std::size_t states) {
    SideModel& model = sides[static_cast<std::size_t>(side)];
    model.applied[key] = states;
    model.failed.erase(key);
    for (Gate& gate : model.gates) {
      const bool had_needs = !gate.needs.empty();
      std::erase_if(gate.needs,
                    [&](const Need& need) { return need.key == key && need.states <= states; });
      if (had_needs && gate.needs.empty()) end(gate, GateOutcome::kOpened);
    }
    if (live(key)) return;
    for (int other = 0; other < kSides; ++other) {
      if (!realised(other, key)) return;
    }
    rows.erase(key);
    for (SideModel& other : sides) other.applied.erase(key);
  }
  void fail(int side, int key) {
    SideModel& model = sides[static_cast<std::size_t>(side)];
    model.failed.insert(key);
    const Revision first = *first_unreconciled(side, key);
    for (Gate& gate : model.gates) {
      const bool waits =
          std::ranges::any_of(gate.needs, [&](const Need& need) { return need.key == key; });
      if (waits || (gate.revision && *gate.revision >= first)) end(gate, GateOutcome::kFailed);
    }
  }
  void open_revision_gates(int side) {
    for (Gate& gate : sides[static_cast<std::size_t>(side)].gates) {
      if (gate.revision && *gate.revision < watermark(side)) end(gate, GateOutcome::kOpened);
    }
  }
};

// --- the target: a map that fails as told
// ---------------------------------------------------------------

class Target : public Operations<int, int> {
 public:
  Target(Model& model, int side) : model_(model), side_(side) {}

  void apply(std::span<const Operation<int, int>> batch,
             std::span<OperationResult> results) override {
    require(batch.size() <= budget.new_work + budget.retries, "a batch of ", batch.size(),
            " is over the budget");
    std::vector<std::size_t> attempted;
    std::set<int> keys;
    for (const auto& operation : batch) {
      require(keys.insert(operation.key).second, "key ", operation.key, " twice in a batch");
      require(model_.rows.contains(operation.key), "operation on key ", operation.key,
              ", which is no row");
      require(!model_.realised(side_, operation.key), "operation on key ", operation.key,
              ", which is realised");
      require(model_.rows[operation.key].back().value == operation.value, "old value for key ",
              operation.key);
      attempted.push_back(model_.rows[operation.key].size());
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (i == batch.size() / 2 && meanwhile) std::exchange(meanwhile, nullptr)();
      results[i] = apply_one(batch[i]);
    }
    for (std::size_t i = 0; i < batch.size(); ++i) settle(batch[i].key, attempted[i], results[i]);
  }

  std::expected<void, OperationError> scan_begin() override {
    if (scan_fails) return std::unexpected(OperationError{ErrorClass::kTransient, EAGAIN, "scan"});
    scanned_to_ = -1;
    return {};
  }

  std::expected<bool, OperationError> scan_next(
      std::size_t max, std::vector<std::pair<int, int>>& entries) override {
    if (scan_fails) return std::unexpected(OperationError{ErrorClass::kTransient, EAGAIN, "scan"});
    for (auto entry = held.upper_bound(scanned_to_); entry != held.end() && max > 0;
         ++entry, --max) {
      entries.push_back(*entry);
      scanned_to_ = entry->first;
    }
    for (const auto& [key, value] : entries) compare(key, value);
    return held.upper_bound(scanned_to_) == held.end();
  }

  std::map<int, int> held;
  std::map<int, std::pair<ErrorClass, std::uint32_t>> faults;
  std::size_t capacity = SIZE_MAX;
  bool scan_fails = false;
  Budget budget;
  std::function<void()> meanwhile;

 private:
  OperationResult apply_one(const Operation<int, int>& operation) {
    if (const auto fault = faults.find(operation.key); fault != faults.end()) {
      const ErrorClass error_class = fault->second.first;
      if (--fault->second.second == 0) faults.erase(fault);
      return {.error = OperationError{error_class, EIO, "fault"}};
    }
    if (!operation.value) {
      model_.sides[static_cast<std::size_t>(side_)].tainted.erase(operation.key);
      return {.freed = held.erase(operation.key) > 0};
    }
    if (!held.contains(operation.key) && held.size() >= capacity) {
      return {.error = OperationError{ErrorClass::kCapacity, E2BIG, "full"}};
    }
    held[operation.key] = *operation.value;
    model_.sides[static_cast<std::size_t>(side_)].tainted.erase(operation.key);
    return {};
  }

  void settle(int key, std::size_t attempted, const OperationResult& result) {
    if (!result.error) {
      model_.realise(side_, key, attempted);
    } else if (result.error->error_class == ErrorClass::kPermanent &&
               model_.rows[key].size() == attempted) {
      model_.fail(side_, key);
    }
  }

  // What the contract of a resync says about one entry that it finds.
  void compare(int key, int value) {
    SideModel& side = model_.sides[static_cast<std::size_t>(side_)];
    if (!model_.rows.contains(key)) {
      model_.change(key, std::nullopt);
      return;
    }
    const bool right = model_.rows[key].back().value == value;
    if (right) side.tainted.erase(key);
    if (right && !model_.realised(side_, key)) model_.realise(side_, key, model_.rows[key].size());
    if (!right && model_.realised(side_, key)) --side.applied[key];
  }

  Model& model_;
  int side_;
  int scanned_to_ = -1;
};

// --- the run
// ----------------------------------------------------------------------------------------------

class World {
 public:
  World() {
    for (int side = 0; side < kSides; ++side) {
      targets_.push_back(std::make_unique<Target>(model_, side));
      Options options;
      options.seed = static_cast<std::uint64_t>(side);
      options.resync_slice = 3;
      reconcilers_.push_back(
          std::make_unique<Reconciler<int, int>>(table_, *targets_.back(), options));
    }
  }

  void happen(const Event& event) {
    const std::size_t side = static_cast<std::size_t>(event.side % kSides);
    Target& target = *targets_[side];
    switch (event.kind) {
      case Event::Kind::kCommit:
        return commit(event.changes);
      case Event::Kind::kAbort: {
        auto transaction = table_.begin();
        for (const auto& change : event.changes) transaction.put(change.key % kKeys, next_value_++);
        return;
      }
      case Event::Kind::kStep:
        return step(static_cast<int>(side), 1 + event.number % 12, event.meanwhile);
      case Event::Kind::kFail:
        target.faults[event.key % kKeys] = {event.error, 1 + event.number % 8};
        return;
      case Event::Kind::kHeal:
        target.faults.erase(event.key % kKeys);
        return;
      case Event::Kind::kCapacity:
        target.capacity = event.number % (kKeys + 1);
        return;
      case Event::Kind::kForeign:
        return foreign_change(target, model_.sides[side], event.key % kKeys, event.number);
      case Event::Kind::kResync:
        return reconcilers_[side]->request_resync();
      case Event::Kind::kScanFault:
        target.scan_fails = event.number % 2 == 1;
        return;
      case Event::Kind::kClock:
        now_ += std::chrono::milliseconds(event.number);
        return;
      case Event::Kind::kRevisionGate:
        return revision_gate(side, event.number);
      case Event::Kind::kRowGate:
        return row_gate(side, event);
      case Event::Kind::kCancel:
        return cancel(side, event.number);
      case Event::Kind::kTargetChanged:
        model_.sides[side].failed.clear();
        return reconcilers_[side]->target_changed(0);
      case Event::Kind::kShutDown:
        return shut_down(side);
    }
  }

  // Everything that can be asked agrees with the model.
  void check() const {
    require(table_.revision() == model_.revision, "revision ", table_.revision(), ", model ",
            model_.revision);
    for (int side = 0; side < kSides; ++side) check_side(side);
  }

  // Once nothing fails any more, everything is realised within a bounded number of steps, and
  // nothing is left.
  void settle() {
    for (std::size_t side = 0; side < kSides; ++side) {
      targets_[side]->faults.clear();
      targets_[side]->capacity = SIZE_MAX;
      targets_[side]->scan_fails = false;
      model_.sides[side].failed.clear();
      reconcilers_[side]->target_changed(0);
      reconcilers_[side]->request_resync();
    }
    // Twice: what one side finds unknown and deletes is a row for the other, too.
    for (int i = 0; i < 2 * kSides; ++i) run_until_idle(i % kSides);
    for (int side = 0; side < kSides; ++side) check_settled(side);
  }

  // Every gate has ended exactly once, the last ones by the destructor.
  void finish() {
    for (std::size_t side = 0; side < kSides; ++side) {
      for (Gate& gate : model_.sides[side].gates) Model::end(gate, GateOutcome::kShuttingDown);
      reconcilers_[side].reset();
      check_gates(static_cast<int>(side));
    }
  }

 private:
  void commit(const std::vector<Event::Change>& changes) {
    auto transaction = table_.begin();
    Revision named = 0;
    const Revision before = model_.revision;
    for (const auto& [number, what] : changes) {
      const int key = number % kKeys;
      if (what == Event::Change::What::kErase) {
        transaction.erase(key);
        named = std::max(named, model_.erase(key));
        continue;
      }
      const bool same = what == Event::Change::What::kPutSame && model_.live(key);
      const int value = same ? *model_.rows[key].back().value : next_value_++;
      transaction.put(key, value);
      named = std::max(named, model_.put(key, value));
    }
    const Commit result = std::move(transaction).commit(now_);
    require(result.revision == named, "commit named ", result.revision, ", model ", named);
    require(result.changed == model_.revision - before, "commit changed ", result.changed);
  }

  void step(int side, std::size_t size, const std::vector<Event>& meanwhile) {
    Target& target = *targets_[static_cast<std::size_t>(side)];
    target.budget = {.new_work = size, .retries = (size + 1) / 2};
    target.meanwhile = [&] {
      for (const Event& event : meanwhile) happen(event);
    };
    for (Gate& gate : model_.sides[static_cast<std::size_t>(side)].gates) {
      if (gate.deadline && *gate.deadline <= now_) Model::end(gate, GateOutcome::kTimedOut);
    }
    last_ = reconcilers_[static_cast<std::size_t>(side)]->step(now_, target.budget);
    target.meanwhile = nullptr;
    accept_missing(side);
    model_.open_revision_gates(side);
    check_gates(side);
  }

  // A resync finds rows missing in its own order: right for those that somebody else touched, and
  // only those.
  void accept_missing(int side) {
    SideModel& model = model_.sides[static_cast<std::size_t>(side)];
    for (const int key : model.tainted) {
      if (!model_.live(key) || !model_.realised(side, key)) continue;
      const auto status = reconcilers_[static_cast<std::size_t>(side)]->status(key);
      if (status && status->first_unreconciled) --model.applied[key];
    }
  }

  void foreign_change(Target& target, SideModel& model, int key, std::uint32_t number) {
    model.tainted.insert(key);
    if (number % 2 == 0) {
      target.held[key] = next_value_++;
    } else {
      target.held.erase(key);
    }
  }

  std::optional<TimePoint> deadline(std::uint32_t number) const {
    if (number % 3 == 0) return std::nullopt;
    return now_ + std::chrono::milliseconds(number % 997);
  }

  GateCallback record(Gate& gate) {
    return [&gate](GateResult result) {
      ++gate.endings;
      gate.actual = result.outcome;
    };
  }

  void made(Gate& gate, const GateTicket& ticket, std::optional<GateOutcome> at_once) {
    require(ticket.has_value(), "a gate was refused");
    if (const auto* result = std::get_if<GateResult>(&*ticket)) {
      ++gate.endings;
      gate.actual = result->outcome;
      require(at_once == result->outcome, "a gate ended at once with ", to_string(result->outcome));
    } else {
      gate.id = std::get<GateId>(*ticket);
      require(!at_once, "a gate did not end at once with ",
              to_string(at_once.value_or(GateOutcome::kOpened)));
    }
    gate.expected = at_once;
  }

  void revision_gate(std::size_t side, std::uint32_t number) {
    SideModel& model = model_.sides[side];
    Gate& gate = model.gates.emplace_back();
    gate.revision = model_.revision - std::min<Revision>(model_.revision, number % 8);
    gate.deadline = deadline(number);
    std::optional<GateOutcome> at_once;
    if (model_.watermark(static_cast<int>(side)) > *gate.revision) {
      at_once = GateOutcome::kOpened;
    } else if (model.is_shut_down) {
      at_once = GateOutcome::kShuttingDown;
    } else if (std::ranges::any_of(model.failed, [&](int key) {
                 return *model_.first_unreconciled(static_cast<int>(side), key) <= *gate.revision;
               })) {
      at_once = GateOutcome::kFailed;
    }
    made(gate,
         reconcilers_[side]->wait_for_revision(table_.epoch(), *gate.revision, gate.deadline,
                                               record(gate)),
         at_once);
  }

  void row_gate(std::size_t side, const Event& event) {
    SideModel& model = model_.sides[side];
    Gate& gate = model.gates.emplace_back();
    gate.deadline = deadline(event.number);
    std::vector<int> keys;
    std::optional<GateOutcome> at_once;
    for (const auto& change : event.changes) {
      const int key = change.key % kKeys;
      keys.push_back(key);
      if (!model_.rows.contains(key) || model_.realised(static_cast<int>(side), key)) continue;
      if (model.failed.contains(key)) at_once = GateOutcome::kFailed;
      gate.needs.push_back({key, model_.rows[key].size(), !model_.live(key)});
    }
    if (!at_once && gate.needs.empty()) at_once = GateOutcome::kOpened;
    if (!at_once && model.is_shut_down) at_once = GateOutcome::kShuttingDown;
    made(gate, reconcilers_[side]->wait_for_rows(keys, gate.deadline, record(gate)), at_once);
  }

  void cancel(std::size_t side, std::uint32_t number) {
    auto& gates = model_.sides[side].gates;
    if (gates.empty()) return;
    Gate& gate = gates[number % gates.size()];
    if (!gate.id) return;
    const bool cancelled = reconcilers_[side]->cancel(*gate.id);
    require(cancelled == !gate.expected, "cancel said ", cancelled);
    Model::end(gate, GateOutcome::kCancelled);
  }

  void shut_down(std::size_t side) {
    model_.sides[side].is_shut_down = true;
    for (Gate& gate : model_.sides[side].gates) Model::end(gate, GateOutcome::kShuttingDown);
    reconcilers_[side]->shut_down();
  }

  void run_until_idle(int side) {
    for (int steps = 0; steps < kStepsToSettle; ++steps) {
      step(side, 8, {});
      check();
      if (last_.more) continue;
      const auto progress = reconcilers_[static_cast<std::size_t>(side)]->progress();
      if (progress.lowest_unreconciled > progress.revision && !progress.resync.requested) return;
      require(last_.next.has_value(), "nothing is due, and not everything is realised");
      now_ = std::max(now_, *last_.next);
    }
    throw Mismatch("not everything is realised after many steps");
  }

  void check_settled(int side) const {
    const auto& held = targets_[static_cast<std::size_t>(side)]->held;
    std::size_t live = 0;
    for (const auto& [key, states] : model_.rows) {
      if (!states.back().value) continue;
      ++live;
      require(held.contains(key) && held.at(key) == *states.back().value, "target ", side,
              " has not key ", key);
    }
    require(held.size() == live, "target ", side, " holds ", held.size(), " entries, the table ",
            live);
  }

  void check_gates(int side) const {
    for (const Gate& gate : model_.sides[static_cast<std::size_t>(side)].gates) {
      require(gate.endings <= 1, "a gate ended ", gate.endings, " times");
      require(gate.expected == gate.actual, "a gate ",
              gate.revision ? "for a revision" : "for rows", " ended ",
              gate.actual ? to_string(*gate.actual) : "not", ", model ",
              gate.expected ? to_string(*gate.expected) : "not");
    }
  }

  void check_side(int side) const {
    const auto& reconciler = *reconcilers_[static_cast<std::size_t>(side)];
    const Progress progress = reconciler.progress();
    require(progress.lowest_unreconciled == model_.watermark(side), "side ", side, ": watermark ",
            progress.lowest_unreconciled, ", model ", model_.watermark(side));
    require(progress.rows == model_.rows.size(), "rows ", progress.rows, ", model ",
            model_.rows.size());
    std::size_t done = 0;
    std::size_t pending = 0;
    std::size_t errors = 0;
    for (int key = 0; key < kKeys; ++key) {
      const auto status = reconciler.status(key);
      require(status.has_value() == model_.rows.contains(key), "key ", key, " is a row, or not");
      if (!status) continue;
      require(status->first_unreconciled == model_.first_unreconciled(side, key), "side ", side,
              " key ", key, ": first unreconciled ", status->first_unreconciled.value_or(0),
              ", model ", model_.first_unreconciled(side, key).value_or(0));
      require(status->erased != model_.live(key), "key ", key, " erased, or not");
      require(table_.find(key) == model_.rows.at(key).back().value, "key ", key,
              " has another value");
      done += status->state == RowState::kDone;
      pending += status->state == RowState::kPending;
      errors += status->state == RowState::kError;
      require(model_.realised(side, key) == (status->state == RowState::kDone), "key ", key,
              " done, or not");
    }
    require(progress.done == done && progress.pending == pending && progress.errors == errors,
            "counts differ from a recount");
    std::size_t open = 0;
    for (const Gate& gate : model_.sides[static_cast<std::size_t>(side)].gates)
      open += !gate.expected;
    require(progress.open_gates == open, "open gates ", progress.open_gates, ", model ", open);
  }

  TimePoint now_{1h};
  int next_value_ = 1;
  StepResult last_;
  Model model_;
  Table<int, int> table_{Epoch::from_random(1, 2)};
  std::vector<std::unique_ptr<Target>> targets_;
  std::vector<std::unique_ptr<Reconciler<int, int>>> reconcilers_;
};

// --- drawing
// ----------------------------------------------------------------------------------------------

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  Schedule schedule() {
    Schedule events;
    for (std::uint32_t left = 5 + below(60); left > 0; --left) events.push_back(event());
    return events;
  }

 private:
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

  Event event() {
    using Kind = Event::Kind;
    static constexpr std::array kKinds = {
        Kind::kCommit,       Kind::kCommit,       Kind::kCommit,  Kind::kCommit,
        Kind::kCommit,       Kind::kAbort,        Kind::kStep,    Kind::kStep,
        Kind::kStep,         Kind::kStep,         Kind::kStep,    Kind::kStep,
        Kind::kStep,         Kind::kStep,         Kind::kFail,    Kind::kFail,
        Kind::kHeal,         Kind::kCapacity,     Kind::kForeign, Kind::kForeign,
        Kind::kResync,       Kind::kScanFault,    Kind::kClock,   Kind::kClock,
        Kind::kRevisionGate, Kind::kRowGate,      Kind::kRowGate, Kind::kRevisionGate,
        Kind::kCancel,       Kind::kTargetChanged};
    Event drawn = plain(below(400) == 0 ? Kind::kShutDown : kKinds[below(kKinds.size())]);
    if (drawn.kind == Kind::kStep && below(2) == 0) {
      static constexpr std::array kMeanwhile = {Kind::kCommit, Kind::kCommit,  Kind::kCommit,
                                                Kind::kAbort,  Kind::kRowGate, Kind::kRevisionGate,
                                                Kind::kCancel, Kind::kForeign};
      for (std::uint32_t i = 1 + below(3); i > 0; --i) {
        drawn.meanwhile.push_back(plain(kMeanwhile[below(kMeanwhile.size())]));
      }
    }
    return drawn;
  }

  Event plain(Event::Kind kind) {
    Event drawn{.kind = kind};
    drawn.side = static_cast<int>(below(3)) / 2;  // the first one twice as often
    drawn.key = static_cast<int>(below(kKeys));
    drawn.number = below(kind == Event::Kind::kClock && below(10) == 0 ? 100'000'000 : 400);
    drawn.error = static_cast<ErrorClass>(below(4));
    for (std::uint32_t i = 1 + below(5); i > 0; --i) {
      drawn.changes.push_back(
          {static_cast<int>(below(kKeys)), static_cast<Event::Change::What>(below(3))});
    }
    return drawn;
  }

  std::mt19937_64 random_;
};

void describe(const Event& event, int depth, std::ostream& out) {
  static constexpr std::array kNames = {"commit",     "abort",          "step",          "fail",
                                        "heal",       "capacity",       "foreign",       "resync",
                                        "scan fault", "clock",          "revision gate", "row gate",
                                        "cancel",     "target changed", "shut down"};
  out << std::string(static_cast<std::size_t>(depth) * 2, ' ')
      << kNames[static_cast<std::size_t>(event.kind)] << " side=" << event.side
      << " key=" << event.key << " number=" << event.number << " error=\"" << to_string(event.error)
      << "\" changes=[";
  for (const auto& change : event.changes) {
    static constexpr std::array kWhat = {"put", "put-same", "erase"};
    out << ' ' << kWhat[static_cast<std::size_t>(change.what)] << ' ' << change.key;
  }
  out << " ]\n";
  for (const Event& inner : event.meanwhile) describe(inner, depth + 1, out);
}

// Leaves out elements of `part` for as long as `fails` says that the rest still fails.
template <typename Element>
void reduce_part(std::vector<Element>& part, const std::function<bool()>& fails) {
  for (std::size_t chunk = std::max<std::size_t>(part.size() / 2, 1);; chunk /= 2) {
    for (std::size_t at = 0; at < part.size();) {
      const std::vector<Element> whole = part;
      const auto first = part.begin() + static_cast<std::ptrdiff_t>(at);
      part.erase(first, first + static_cast<std::ptrdiff_t>(std::min(chunk, part.size() - at)));
      if (!fails()) {
        part = whole;
        at += chunk;
      }
    }
    if (chunk <= 1) return;
  }
}

}  // namespace

Schedule draw(std::uint64_t seed) {
  return Draw(seed).schedule();
}

std::optional<std::string> run(const Schedule& schedule) {
  try {
    World world;
    for (const Event& event : schedule) {
      world.happen(event);
      world.check();
    }
    world.settle();
    world.finish();
  } catch (const Mismatch& mismatch) {
    return mismatch.what();
  }
  return std::nullopt;
}

Schedule reduce(Schedule schedule) {
  const std::function<bool()> fails = [&] { return run(schedule).has_value(); };
  for (std::size_t before = SIZE_MAX; schedule.size() < before;) {
    before = schedule.size();
    reduce_part(schedule, fails);
    for (Event& event : schedule) {
      reduce_part(event.meanwhile, fails);
      reduce_part(event.changes, fails);
    }
  }
  return schedule;
}

std::string describe(const Schedule& schedule) {
  std::ostringstream out;
  for (const Event& event : schedule) describe(event, 0, out);
  return out.str();
}

}  // namespace mapgate::reconciler::simulation
