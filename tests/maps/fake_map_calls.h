// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_operations.h>

namespace mapgate::maps::test {

using Bytes = std::vector<std::byte>;
// Spelled out: GCC 12 warns of memcmp in the library's own comparison.
struct BytesLess {
  bool operator()(const Bytes& a, const Bytes& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](std::byte x, std::byte y) { return x < y; });
  }
};
using Operation = reconciler::Operation<RowKey, RowValue>;
using Result = reconciler::OperationResult;

// The bytes of a number, in host byte order.
template <typename Number>
Bytes bytes_of(Number number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

inline Operation write(std::uint32_t key, std::uint64_t value, MapIndex map = 0) {
  return {RowKey::of(map, key), row_value(value)};
}
inline Operation erase(std::uint32_t key, MapIndex map = 0) {
  return {RowKey::of(map, key), std::nullopt};
}

inline MapInfo hash_info(std::uint32_t max_entries) {
  return {.type = BPF_MAP_TYPE_HASH,
          .key_size = 4,
          .value_size = 8,
          .max_entries = max_entries,
          .name = "mg_test"};
}
inline MapInfo trie_info(std::uint32_t max_entries) {
  MapInfo info = hash_info(max_entries);
  info.type = BPF_MAP_TYPE_LPM_TRIE;
  info.key_size = 8;
  return info;
}

std::vector<Result> carry_out(reconciler::Operations<RowKey, RowValue>& operations,
                              const std::vector<Operation>& batch);

// One map in memory that answers like the kernel: elements of a batch in order, stop at the first
// error, `count` the number done. Faults are injected on top.
class FakeMapCalls final : public MapCalls {
 public:
  explicit FakeMapCalls(MapInfo info, unsigned possible_cpus = 1);

  // A Map whose calls come here.
  [[nodiscard]] Map map() const;

  // The kernel's answer to the next batch call of that kind instead of the true one: `really_done`
  // elements are carried out, `count` is left in the caller's.
  struct BatchAnswer {
    int error = 0;
    std::uint32_t count = 0;
    std::uint32_t really_done = 0;
  };
  std::deque<BatchAnswer> next_update_batches;
  std::deque<BatchAnswer> next_remove_batches;
  // Errors of the next lookup_batch calls; `count` is what they leave.
  std::deque<BatchAnswer> next_lookup_batches;
  // Element errors, by key: raised whenever the element is written or removed, `times` times.
  struct ElementError {
    int error = 0;
    int times = 1 << 30;
  };
  std::map<Bytes, ElementError, BytesLess> element_errors;
  // Batch calls that this kernel does not have.
  int update_batch_missing = 0;
  int remove_batch_missing = 0;
  int lookup_batch_missing = 0;
  // ENOSPC from lookup_batch for fewer than that, as for a crowded bucket.
  std::uint32_t fullest_bucket = 0;
  // Each call of next_key or lookup_batch starts again from the first element.
  bool forgets_cursor = false;
  // Runs between next_key and lookup.
  std::function<void(const Bytes& key)> before_lookup;
  // What time passes per element and per call.
  reconciler::Duration element_cost{};
  reconciler::Duration call_cost{};

  std::map<Bytes, Bytes, BytesLess> elements;
  reconciler::TimePoint time{};
  std::vector<reconciler::Duration> batch_durations;
  std::vector<std::uint32_t> lookup_sizes;
  std::string journal;  // 'w' for an element written, 'd' for one deleted
  int update_calls = 0;
  int remove_calls = 0;
  int update_batch_calls = 0;
  int remove_batch_calls = 0;

  [[nodiscard]] std::optional<std::uint64_t> value(std::uint32_t key) const;
  [[nodiscard]] MapOperations::Options options();
  [[nodiscard]] MapOperations operations();

  unsigned possible_cpus() override { return cpus_; }
  int update(int fd, const void* key, const void* value) override;
  int remove(int fd, const void* key) override;
  int lookup(int fd, const void* key, void* value) override;
  int next_key(int fd, const void* key, void* next) override;
  int update_batch(int fd, const void* keys, const void* values, std::uint32_t& count) override;
  int remove_batch(int fd, const void* keys, std::uint32_t& count) override;
  int lookup_batch(int fd, const void* cursor, void* next_cursor, void* keys, void* values,
                   std::uint32_t& count) override;

 private:
  [[nodiscard]] std::size_t element_size() const;
  [[nodiscard]] Bytes key_at(const void* keys, std::size_t i) const;
  [[nodiscard]] int injected(const Bytes& key);
  int update_element(const Bytes& key, const void* value);
  int remove_element(const Bytes& key);
  int run_batch(std::deque<BatchAnswer>& answers, std::uint32_t& count,
                const std::function<int(std::size_t)>& element);

  MapInfo info_;
  unsigned cpus_;
  // The last key of each lookup_batch. Its cursor is a number, four bytes whatever the size of a
  // key, as in the kernel's hash.
  std::vector<Bytes> cursors_;
};

}  // namespace mapgate::maps::test
