// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler::detail {

// A binary min-heap of (time, item) in which an item can be moved or removed in O(log n):
// `Positions` is called as position(item) -> std::uint32_t& and stores where the item stands.
template <typename Positions>
class IndexedHeap {
 public:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  explicit IndexedHeap(Positions positions) : position_(std::move(positions)) {}

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] TimePoint top_time() const { return entries_.front().time; }
  [[nodiscard]] std::uint32_t top() const { return entries_.front().item; }

  // Adds `item`, or moves it if it is in the heap.
  void set(std::uint32_t item, TimePoint time) {
    std::uint32_t at = position_(item);
    if (at == kAbsent) {
      at = static_cast<std::uint32_t>(entries_.size());
      entries_.push_back({time, item});
    } else {
      entries_[at].time = time;
    }
    sift_down(sift_up(at));
  }

  // Does nothing if `item` is not in the heap.
  void remove(std::uint32_t item) {
    const std::uint32_t at = std::exchange(position_(item), kAbsent);
    if (at == kAbsent) return;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at == entries_.size()) return;
    entries_[at] = last;
    sift_down(sift_up(at));
  }

 private:
  struct Entry {
    TimePoint time;
    std::uint32_t item;
  };

  std::uint32_t sift_up(std::uint32_t at) {
    const Entry moving = entries_[at];
    while (at > 0) {
      const std::uint32_t parent = (at - 1) / 2;
      if (entries_[parent].time <= moving.time) break;
      place(at, entries_[parent]);
      at = parent;
    }
    place(at, moving);
    return at;
  }

  void sift_down(std::uint32_t at) {
    const Entry moving = entries_[at];
    for (;;) {
      std::uint32_t child = 2 * at + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && entries_[child + 1].time < entries_[child].time) ++child;
      if (moving.time <= entries_[child].time) break;
      place(at, entries_[child]);
      at = child;
    }
    place(at, moving);
  }

  void place(std::uint32_t at, const Entry& entry) {
    entries_[at] = entry;
    position_(entry.item) = at;
  }

  std::vector<Entry> entries_;
  Positions position_;
};

}  // namespace mapgate::reconciler::detail
