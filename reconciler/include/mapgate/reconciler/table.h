// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/reconciler/detail/chunked_array.h>
#include <mapgate/reconciler/detail/follower.h>
#include <mapgate/reconciler/detail/table_mutex.h>
#include <mapgate/reconciler/hash_index.h>
#include <mapgate/reconciler/staggered.h>
#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler {

template <typename Key, typename Value, typename Hash>
class Reconciler;

// What a transaction came to.
struct Commit {
  Epoch epoch;
  // The newest revision among the rows that the transaction named, changed or not: who waits for it
  // waits for everything that the transaction asked for. 0 if none of them is a row, which never
  // blocks.
  Revision revision = 0;
  std::size_t changed = 0;  // rows that got a new revision
};

// What a Reader has to say besides the changes that it delivers.
enum class ReadResult : std::uint8_t {
  kMore,        // there are more changes
  kUpToDate,    // for now
  kMustRelist,  // it fell so far behind that deletions are forgotten: only a new Reader from 0 is
                // right
};

// Names a source of desired state, see Table::add_source.
struct SourceId {
  std::uint32_t index = 0;
};

// The desired state: rows by unique key. Every committed change, write or erase, takes the next
// revision. An erased row stays a row until every reconciler has confirmed the deletion.
//
// Any thread may call anything; a transaction belongs to one thread. Key and Value are copied
// around: keep them small. Value needs ==. The table must outlive its transactions and reconcilers.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class Table {
  using RowIndex = detail::RowIndex;
  static constexpr RowIndex kNone = HashIndex::kNone;
  struct Row;
  struct Change {
    Key key;
    std::optional<Value> value;
    std::uint32_t hash;  // of the key: computed where no lock is held
  };

 public:
  explicit Table(Epoch epoch) : epoch_(epoch) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Changes that become visible together, with commit(), or never: when it is destroyed without.
  class Transaction {
   public:
    Transaction(Transaction&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)), changes_(std::move(other.changes_)) {}
    Transaction& operator=(Transaction&&) = delete;

    void reserve(std::size_t changes) { changes_.reserve(changes); }
    // A value equal to what the row holds is no change.
    void put(Key key, Value value) {
      assert(table_ && "transaction used after commit");
      const std::uint32_t hash = hash_of(key);
      changes_.push_back({std::move(key), std::move(value), hash});
    }
    // Erasing what is no row is no change.
    void erase(Key key) {
      assert(table_ && "transaction used after commit");
      const std::uint32_t hash = hash_of(key);
      changes_.push_back({std::move(key), std::nullopt, hash});
    }
    [[nodiscard]] bool empty() const { return changes_.empty(); }
    Commit commit(TimePoint now) && {
      assert(table_ && "transaction used after commit");
      return std::exchange(table_, nullptr)->commit(changes_, now);
    }

   private:
    friend class Table;
    explicit Transaction(Table* table) : table_(table) {}

    Table* table_;
    std::vector<Change> changes_;
  };

  [[nodiscard]] Transaction begin() { return Transaction(this); }

  [[nodiscard]] Epoch epoch() const { return epoch_; }
  // The newest revision handed out; 0 at first.
  [[nodiscard]] Revision revision() const {
    const std::lock_guard lock(mutex_);
    return revision_;
  }
  [[nodiscard]] std::optional<Value> find(const Key& key) const {
    const std::lock_guard lock(mutex_);
    const RowIndex row = find_row(key);
    if (row == kNone || rows_[row].erased) return std::nullopt;
    return rows_[row].value;
  }
  // Rows, those erased but not confirmed included.
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return index_.size();
  }

  // Follows the table in order of revision: delivers each row's newest change that it has not
  // delivered, an erased row without value. From revision 0 on that is a list of all rows, then
  // every change to them. Belongs to one thread at a time. Between two calls it holds nothing but
  // its place: the table is locked for one page only. Any number of readers can follow; what they
  // need together beyond the rows are the last kForgetAfter deletions.
  class Reader {
   public:
    Reader(Reader&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)),
          place_(other.place_),
          position_(other.position_),
          owed_from_(other.owed_from_) {}
    Reader& operator=(Reader&&) = delete;
    ~Reader() {
      if (table_) table_->close_reader(place_);
    }

    // Calls visit(const Key&, const Value* or null, Revision) for at most `max` changes, with the
    // table locked: `visit` must not use it.
    template <typename Visit>
    [[nodiscard]] ReadResult read(std::size_t max, Visit&& visit) {
      return table_->read(*this, max, [&](RowIndex, const Row& row) {
        visit(row.key, row.erased ? nullptr : &row.value, row.revision);
      });
    }
    // Everything up to here is delivered.
    [[nodiscard]] Revision position() const { return position_; }

   private:
    friend class Table;
    friend class Reconciler<Key, Value, Hash>;
    Reader(Table* table, RowIndex place, Revision position, Revision owed_from)
        : table_(table), place_(place), position_(position), owed_from_(owed_from) {}

    Table* table_;
    RowIndex place_;  // stands in the list of rows behind the last one delivered
    Revision position_;
    Revision owed_from_;  // a list owes no deletion from before it began
  };
  static constexpr std::size_t kForgetAfter = 4096;

  // From 0: every row. Costs O(changes after `revision`), O(1) from 0.
  [[nodiscard]] Reader changes_since(Revision revision) {
    const std::lock_guard lock(mutex_);
    RowIndex after = revision > 0 ? newest_ : kNone;
    while (after != kNone && rows_[after].revision > revision) after = rows_[after].previous;
    const RowIndex place = take_place(Kind::kReader);
    link_behind(place, after);
    return Reader(this, place, revision, revision > 0 ? revision : revision_);
  }

  // A source of desired state that has not been complete yet keeps every resync from starting: rows
  // that it has yet to bring would look unknown. Once complete it stays so; one that never will be
  // can be removed.
  [[nodiscard]] SourceId add_source(std::string name) {
    const std::lock_guard lock(mutex_);
    sources_.push_back({std::move(name), false});
    return {static_cast<std::uint32_t>(sources_.size() - 1)};
  }
  void source_complete(SourceId source) {
    {
      const std::lock_guard lock(mutex_);
      sources_[source.index].complete = true;
    }
    wake_followers();
  }
  void remove_source(SourceId source) { source_complete(source); }
  // Names of the sources that a resync waits for.
  [[nodiscard]] std::vector<std::string> incomplete_sources() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const Source& source : sources_) {
      if (!source.complete) names.push_back(source.name);
    }
    return names;
  }

 private:
  friend class Reconciler<Key, Value, Hash>;

  enum class Kind : std::uint8_t {
    kFree,
    kRow,
    kGhost,   // was an erased row: stays in the list for readers, but is none any more
    kReader,  // not a row at all: the place of a reader in the list
  };

  struct Row {
    Key key{};
    Value value{};
    bool erased = false;  // here it may fill a hole that the value leaves
    Kind kind = Kind::kFree;
    Revision revision = 0;
    RowIndex previous = kNone;  // neighbours in order of revision
    RowIndex next = kNone;
  };

  struct Source {
    std::string name;
    bool complete;
  };

  static std::uint32_t hash_of(const Key& key) {
    // std::hash of an integer is the integer: multiply so that every bit counts.
    const std::uint64_t hash = static_cast<std::uint64_t>(Hash{}(key)) * 0x9e3779b97f4a7c15;
    return static_cast<std::uint32_t>((hash ^ (hash >> 32)) * 0xd6e8feb8669fd5d5 >> 32);
  }

  [[nodiscard]] RowIndex find_row(const Key& key) const { return find_row(key, hash_of(key)); }
  [[nodiscard]] RowIndex find_row(const Key& key, std::uint32_t hash) const {
    return index_.find(hash, [&](RowIndex row) { return rows_[row].key == key; });
  }
  // The row that a key of this hash most likely is, found without a look at any row.
  [[nodiscard]] RowIndex guess_row(std::uint32_t hash) const {
    return index_.find(hash, [](RowIndex) { return true; });
  }
  // Two lines of cache, where a row may lie across them.
  void prefetch(RowIndex row) const {
    const Row& fetched = rows_[row];
    __builtin_prefetch(&fetched, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(&fetched + 1) - 1, 1);
  }
  void prefetch_neighbours(RowIndex row) const {
    for (const RowIndex neighbour : {rows_[row].previous, rows_[row].next}) {
      if (neighbour != kNone) __builtin_prefetch(&rows_[neighbour], 1);
    }
  }

  Commit commit(std::vector<Change>& changes, TimePoint now) {
    Commit result{.epoch = epoch_};
    {
      const std::lock_guard lock(mutex_);
      staggered(
          changes.size(), [&](std::size_t i) { index_.prefetch(changes[i].hash); },
          [&](std::size_t i) {
            const RowIndex row = guess_row(changes[i].hash);
            if (row == kNone) return;
            prefetch(row);
            for (const detail::Follower* follower : followers_) follower->ledger.prefetch(row);
          },
          [&](std::size_t i) {
            const RowIndex row = guess_row(changes[i].hash);
            if (row != kNone) prefetch_neighbours(row);
          },
          [&](std::size_t i) { carry_out(changes[i], now, result); });
    }
    if (result.changed > 0) wake_followers();
    return result;
  }

  void carry_out(Change& change, TimePoint now, Commit& result) {
    const Revision before = revision_;
    const Revision named = change.value ? put(change, now) : erase(change, now);
    result.revision = std::max(result.revision, named);
    result.changed += revision_ - before;
  }

  // Both return the revision of the row's newest state.
  Revision put(Change& change, TimePoint now) {
    RowIndex row = find_row(change.key, change.hash);
    if (row == kNone) {
      row = new_row(std::move(change.key), change.hash);
    } else if (!rows_[row].erased && rows_[row].value == *change.value) {
      return rows_[row].revision;
    }
    rows_[row].value = std::move(*change.value);
    rows_[row].erased = false;
    return changed(row, now);
  }

  Revision erase(const Change& change, TimePoint now) {
    const RowIndex row = find_row(change.key, change.hash);
    if (row == kNone) return 0;
    if (rows_[row].erased) return rows_[row].revision;
    rows_[row].erased = true;
    rows_[row].value = Value{};
    for (detail::Follower* follower : followers_) follower->gates.row_erased(row);
    const Revision revision = changed(row, now);
    release_if_confirmed(row);  // nobody follows
    return revision;
  }

  // A key that is not a row was found in a target: it is to be deleted like a row that was erased.
  RowIndex erase_unknown(const Key& key, TimePoint now) {
    const RowIndex row = new_row(Key(key), hash_of(key));
    rows_[row].erased = true;
    changed(row, now);
    return row;
  }

  Revision changed(RowIndex row, TimePoint now) {
    if (rows_[row].revision != 0) unlink(row);
    rows_[row].revision = ++revision_;
    link_behind(row, newest_);
    for (detail::Follower* follower : followers_) follower->ledger.changed(row, revision_, now);
    return revision_;
  }

  RowIndex take_place(Kind kind) {
    RowIndex place;
    if (free_places_.empty()) {
      place = rows_.size();
      rows_.grow(place + 1);
      for (detail::Follower* follower : followers_) follower->ledger.grow(place + 1);
    } else {
      place = free_places_.back();
      free_places_.pop_back();
    }
    rows_[place].kind = kind;
    return place;
  }

  void free_place(RowIndex place) {
    unlink(place);
    rows_[place] = Row{};
    free_places_.push_back(place);
  }

  RowIndex new_row(Key&& key, std::uint32_t hash) {
    const RowIndex row = take_place(Kind::kRow);
    rows_[row].key = std::move(key);
    index_.insert(hash, row);
    return row;
  }

  // An erased row goes once every follower has confirmed it. Its ghost stays a while.
  void release_if_confirmed(RowIndex row) {
    if (!rows_[row].erased) return;
    for (const detail::Follower* follower : followers_) {
      if (!follower->ledger.realised(row)) return;
    }
    index_.erase(hash_of(rows_[row].key), row);
    rows_[row].kind = Kind::kGhost;
    ghosts_.push_back(row);
    if (ghosts_.size() <= kForgetAfter) return;
    forgotten_ = std::max(forgotten_, rows_[ghosts_.front()].revision);
    free_place(ghosts_.front());
    ghosts_.pop_front();
  }

  template <typename Deliver>
  ReadResult read(Reader& reader, std::size_t max, const Deliver& deliver) {
    const std::lock_guard lock(mutex_);
    if (forgotten_ > std::max(reader.position_, reader.owed_from_)) return ReadResult::kMustRelist;
    RowIndex last = reader.place_;
    RowIndex row = rows_[last].next;
    for (; row != kNone && max > 0; row = rows_[row].next) {
      last = row;
      if (rows_[row].kind == Kind::kReader) continue;
      deliver(row, rows_[row]);
      reader.position_ = rows_[row].revision;
      --max;
    }
    if (last != reader.place_) {
      unlink(reader.place_);
      link_behind(reader.place_, last);
    }
    while (row != kNone && rows_[row].kind == Kind::kReader) row = rows_[row].next;
    if (row != kNone) return ReadResult::kMore;
    reader.position_ = revision_;
    return ReadResult::kUpToDate;
  }

  void close_reader(RowIndex place) {
    const std::lock_guard lock(mutex_);
    free_place(place);
  }

  void link_behind(RowIndex row, RowIndex previous) {
    const RowIndex next = previous == kNone ? oldest_ : rows_[previous].next;
    rows_[row].previous = previous;
    rows_[row].next = next;
    (previous == kNone ? oldest_ : rows_[previous].next) = row;
    (next == kNone ? newest_ : rows_[next].previous) = row;
  }

  void unlink(RowIndex row) {
    const Row& gone = rows_[row];
    (gone.previous == kNone ? oldest_ : rows_[gone.previous].next) = gone.next;
    (gone.next == kNone ? newest_ : rows_[gone.next].previous) = gone.previous;
  }

  void wake_followers() {
    // Followers come and go only while nobody else uses the table: see Reconciler.
    for (detail::Follower* follower : followers_) follower->wake();
  }

  [[nodiscard]] bool sources_complete() const {
    return std::all_of(sources_.begin(), sources_.end(),
                       [](const Source& source) { return source.complete; });
  }

  mutable detail::TableMutex mutex_;
  const Epoch epoch_;
  Revision revision_ = 0;
  detail::ChunkedArray<Row> rows_;
  std::vector<RowIndex> free_places_;
  std::deque<RowIndex> ghosts_;
  Revision forgotten_ = 0;  // deletions up to here may be unknown to a reader behind it
  RowIndex oldest_ = kNone;
  RowIndex newest_ = kNone;
  HashIndex index_;
  std::vector<detail::Follower*> followers_;
  std::vector<Source> sources_;
};

}  // namespace mapgate::reconciler
