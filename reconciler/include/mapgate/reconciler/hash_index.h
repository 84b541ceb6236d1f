// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mapgate::reconciler {

// Finds numbers by the hash of a key that is stored elsewhere. Open addressing with linear probing:
// a lookup touches one line of cache as a rule, and that line can be fetched ahead, which is why
// this is no set of the standard or of Boost. Growing reads no key.
class HashIndex {
 public:
  using Number = std::uint32_t;
  static constexpr Number kNone = UINT32_MAX;

  [[nodiscard]] std::size_t size() const { return size_; }

  void prefetch(std::uint32_t hash) const { __builtin_prefetch(&slots_[home(hash)], 1); }

  // The first number stored under `hash` for which matches(number); kNone if there is none.
  template <typename Matches>
  [[nodiscard]] Number find(std::uint32_t hash, const Matches& matches) const {
    for (std::size_t at = home(hash); slots_[at].number != kNone; at = next(at)) {
      if (slots_[at].hash == hash && matches(slots_[at].number)) return slots_[at].number;
    }
    return kNone;
  }

  // Makes room for `count` numbers at once.
  void reserve(std::size_t count) {
    while (count > slots_.size() / 4 * 3) grow();
  }
  // `number` is not stored yet, and not kNone.
  void insert(std::uint32_t hash, Number number) {
    if (size_ >= slots_.size() / 4 * 3) grow();
    place(hash, number);
    ++size_;
  }

  // `number` is stored under `hash`.
  void erase(std::uint32_t hash, Number number) {
    std::size_t hole = home(hash);
    while (slots_[hole].number != number) hole = next(hole);
    // Those behind that would not be found across the hole move into it.
    for (std::size_t at = next(hole); slots_[at].number != kNone; at = next(at)) {
      if (distance(home(slots_[at].hash), at) < distance(hole, at)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].number = kNone;
    --size_;
  }

 private:
  struct Slot {
    Number number = kNone;
    std::uint32_t hash = 0;
  };
  static constexpr std::size_t kFewest = 16;

  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  [[nodiscard]] std::size_t home(std::uint32_t hash) const { return hash & mask(); }
  [[nodiscard]] std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const {
    return (to - from) & mask();
  }

  void place(std::uint32_t hash, Number number) {
    std::size_t at = home(hash);
    while (slots_[at].number != kNone) at = next(at);
    slots_[at].number = number;
    slots_[at].hash = hash;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number != kNone) place(slot.hash, slot.number);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kFewest);  // a power of two of them
  std::size_t size_ = 0;
};

}  // namespace mapgate::reconciler
