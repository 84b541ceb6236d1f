// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_set.hpp>

#include <mapgate/reconciler/detail/chunked_array.h>
#include <mapgate/reconciler/detail/follower.h>
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
 public:
  explicit Table(Epoch epoch) : epoch_(epoch), index_(0, IndexHash{}, IndexEqual{&rows_}) {}
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
      changes_.push_back({std::move(key), std::move(value)});
    }
    // Erasing what is no row is no change.
    void erase(Key key) {
      assert(table_ && "transaction used after commit");
      changes_.push_back({std::move(key), std::nullopt});
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
    std::vector<std::pair<Key, std::optional<Value>>> changes_;
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
  using RowIndex = detail::RowIndex;
  static constexpr RowIndex kNone = UINT32_MAX;

  struct Row {
    Key key{};
    Value value{};
    Revision revision = 0;
    RowIndex previous = kNone;  // neighbours in order of revision
    RowIndex next = kNone;
    bool erased = false;
    bool used = false;
  };

  struct Source {
    std::string name;
    bool complete;
  };

  // The index stores rows by number with half of their hash: growing it reads no key.
  struct Slot {
    RowIndex row;
    std::uint32_t hash;
  };
  struct Probe {
    const Key& key;
    std::uint32_t hash;
  };
  struct IndexHash {
    using is_transparent = void;
    using is_avalanching = void;
    static std::size_t spread(std::uint32_t hash) { return std::uint64_t{hash} << 32 | hash; }
    std::size_t operator()(const Slot& slot) const { return spread(slot.hash); }
    std::size_t operator()(const Probe& probe) const { return spread(probe.hash); }
  };
  struct IndexEqual {
    using is_transparent = void;
    const detail::ChunkedArray<Row>* rows;
    bool operator()(const Slot& a, const Slot& b) const { return a.row == b.row; }
    bool operator()(const Probe& a, const Slot& b) const {
      return a.hash == b.hash && a.key == (*rows)[b.row].key;
    }
    bool operator()(const Slot& a, const Probe& b) const { return (*this)(b, a); }
  };

  static std::uint32_t hash_of(const Key& key) {
    // std::hash of an integer is the integer: multiply so that every bit counts.
    const std::uint64_t hash = static_cast<std::uint64_t>(Hash{}(key)) * 0x9e3779b97f4a7c15;
    return static_cast<std::uint32_t>((hash ^ (hash >> 32)) * 0xd6e8feb8669fd5d5 >> 32);
  }

  [[nodiscard]] RowIndex find_row(const Key& key) const {
    const auto slot = index_.find(Probe{key, hash_of(key)});
    return slot == index_.end() ? kNone : slot->row;
  }

  Commit commit(std::vector<std::pair<Key, std::optional<Value>>>& changes, TimePoint now) {
    Commit result{.epoch = epoch_};
    {
      const std::lock_guard lock(mutex_);
      for (auto& [key, value] : changes) {
        const Revision before = revision_;
        const Revision named =
            value ? put(std::move(key), std::move(*value), now) : erase(key, now);
        result.revision = std::max(result.revision, named);
        result.changed += revision_ - before;
      }
    }
    if (result.changed > 0) wake_followers();
    return result;
  }

  // Both return the revision of the row's newest state.
  Revision put(Key&& key, Value&& value, TimePoint now) {
    const std::uint32_t hash = hash_of(key);
    const auto slot = index_.find(Probe{key, hash});
    RowIndex row;
    if (slot == index_.end()) {
      row = new_row(std::move(key), hash);
    } else {
      row = slot->row;
      if (!rows_[row].erased && rows_[row].value == value) return rows_[row].revision;
    }
    rows_[row].value = std::move(value);
    rows_[row].erased = false;
    return changed(row, now);
  }

  Revision erase(const Key& key, TimePoint now) {
    const RowIndex row = find_row(key);
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
  void erase_unknown(const Key& key, TimePoint now) {
    const RowIndex row = new_row(Key(key), hash_of(key));
    rows_[row].erased = true;
    changed(row, now);
  }

  Revision changed(RowIndex row, TimePoint now) {
    Row& changed_row = rows_[row];
    if (changed_row.revision != 0) unlink(row);
    changed_row.revision = ++revision_;
    changed_row.previous = newest_;
    changed_row.next = kNone;
    (newest_ == kNone ? oldest_ : rows_[newest_].next) = row;
    newest_ = row;
    for (detail::Follower* follower : followers_) follower->ledger.changed(row, revision_, now);
    return revision_;
  }

  RowIndex new_row(Key&& key, std::uint32_t hash) {
    RowIndex row;
    if (free_rows_.empty()) {
      row = rows_.size();
      rows_.grow(row + 1);
      for (detail::Follower* follower : followers_) follower->ledger.grow(row + 1);
    } else {
      row = free_rows_.back();
      free_rows_.pop_back();
    }
    rows_[row].key = std::move(key);
    rows_[row].used = true;
    index_.insert(Slot{row, hash});
    return row;
  }

  // An erased row goes once every follower has confirmed it.
  void release_if_confirmed(RowIndex row) {
    if (!rows_[row].erased) return;
    for (const detail::Follower* follower : followers_) {
      if (!follower->ledger.realised(row)) return;
    }
    index_.erase(index_.find(Probe{rows_[row].key, hash_of(rows_[row].key)}));
    unlink(row);
    rows_[row] = Row{};
    free_rows_.push_back(row);
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

  mutable std::mutex mutex_;
  const Epoch epoch_;
  Revision revision_ = 0;
  detail::ChunkedArray<Row> rows_;
  std::vector<RowIndex> free_rows_;
  RowIndex oldest_ = kNone;
  RowIndex newest_ = kNone;
  boost::unordered_flat_set<Slot, IndexHash, IndexEqual> index_;
  std::vector<detail::Follower*> followers_;
  std::vector<Source> sources_;
};

}  // namespace mapgate::reconciler
