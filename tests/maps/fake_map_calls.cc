// SPDX-License-Identifier: Apache-2.0
#include "tests/maps/fake_map_calls.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>

namespace mapgate::maps::test {

std::vector<Result> carry_out(reconciler::Operations<RowKey, RowValue>& operations,
                              const std::vector<Operation>& batch) {
  std::vector<Result> results(batch.size());
  operations.apply(batch, results);
  return results;
}

FakeMapCalls::FakeMapCalls(MapInfo info, unsigned possible_cpus)
    : info_(std::move(info)), cpus_(possible_cpus) {
  if (!is_array(info_.type)) return;
  for (std::uint32_t i = 0; i < info_.max_entries; ++i)
    elements[bytes_of(i)] = Bytes(element_size());
}

Map FakeMapCalls::map() const {
  return {open("/dev/null", O_RDONLY | O_CLOEXEC), info_, {}};
}

std::optional<std::uint64_t> FakeMapCalls::value(std::uint32_t key) const {
  const auto found = elements.find(bytes_of(key));
  if (found == elements.end()) return std::nullopt;
  std::uint64_t number;
  std::memcpy(&number, found->second.data(), sizeof number);
  return number;
}

MapOperations::Options FakeMapCalls::options() {
  return {.now = [this] { return time; }, .call_limit = std::chrono::milliseconds(1)};
}

MapOperations FakeMapCalls::operations() {
  std::vector<Map> maps;
  maps.push_back(map());
  return MapOperations::create(std::move(maps), *this, options()).value();
}

std::size_t FakeMapCalls::element_size() const {
  if (!is_per_cpu(info_.type)) return info_.value_size;
  return cpus_ * ((info_.value_size + std::size_t{7}) / 8 * 8);
}

Bytes FakeMapCalls::key_at(const void* keys, std::size_t i) const {
  const auto* first = static_cast<const std::byte*>(keys) + i * info_.key_size;
  return {first, first + info_.key_size};
}

int FakeMapCalls::injected(const Bytes& key) {
  const auto found = element_errors.find(key);
  if (found == element_errors.end() || found->second.times == 0) return 0;
  --found->second.times;
  return found->second.error;
}

int FakeMapCalls::update_element(const Bytes& key, const void* value) {
  if (const int error = injected(key); error != 0) return error;
  if (!elements.contains(key) && (is_array(info_.type) || elements.size() >= info_.max_entries))
    return info_.type == BPF_MAP_TYPE_LPM_TRIE ? ENOSPC : E2BIG;
  const auto* first = static_cast<const std::byte*>(value);
  elements[key] = Bytes(first, first + element_size());
  journal += 'w';
  return 0;
}

int FakeMapCalls::remove_element(const Bytes& key) {
  if (const int error = injected(key); error != 0) return error;
  if (is_array(info_.type)) return EINVAL;
  if (elements.erase(key) == 0) return ENOENT;
  journal += 'd';
  return 0;
}

int FakeMapCalls::update(int, const void* key, const void* value) {
  ++update_calls;
  return update_element(key_at(key, 0), value);
}

int FakeMapCalls::remove(int, const void* key) {
  ++remove_calls;
  return remove_element(key_at(key, 0));
}

int FakeMapCalls::run_batch(std::deque<BatchAnswer>& answers, std::uint32_t& count,
                            const std::function<int(std::size_t)>& element) {
  std::uint32_t limit = count;
  std::optional<BatchAnswer> answer;
  if (!answers.empty()) {
    answer = answers.front();
    answers.pop_front();
    limit = answer->really_done;
  }
  std::uint32_t done = 0;
  int error = 0;
  while (done < limit && (error = element(done)) == 0) ++done;
  count = answer ? answer->count : done;
  batch_durations.push_back(call_cost + element_cost * done);
  time += batch_durations.back();
  return answer ? answer->error : error;
}

int FakeMapCalls::update_batch(int, const void* keys, const void* values, std::uint32_t& count) {
  if (update_batch_missing != 0) return update_batch_missing;
  if (count == 0) return 0;
  ++update_batch_calls;
  return run_batch(next_update_batches, count, [&](std::size_t i) {
    return update_element(key_at(keys, i),
                          static_cast<const std::byte*>(values) + i * element_size());
  });
}

int FakeMapCalls::remove_batch(int, const void* keys, std::uint32_t& count) {
  if (remove_batch_missing != 0) return remove_batch_missing;
  if (count == 0) return 0;
  ++remove_batch_calls;
  return run_batch(next_remove_batches, count,
                   [&](std::size_t i) { return remove_element(key_at(keys, i)); });
}

int FakeMapCalls::lookup(int, const void* key, void* value) {
  const Bytes wanted = key_at(key, 0);
  if (before_lookup) before_lookup(wanted);
  const auto found = elements.find(wanted);
  if (found == elements.end()) return ENOENT;
  std::memcpy(value, found->second.data(), found->second.size());
  return 0;
}

int FakeMapCalls::next_key(int, const void* key, void* next) {
  auto found = elements.begin();
  if (key != nullptr && !forgets_cursor && elements.contains(key_at(key, 0)))
    found = elements.upper_bound(key_at(key, 0));
  if (found == elements.end()) return ENOENT;
  std::memcpy(next, found->first.data(), found->first.size());
  return 0;
}

int FakeMapCalls::lookup_batch(int, const void* cursor, void* next_cursor, void* keys, void* values,
                               std::uint32_t& count) {
  if (lookup_batch_missing != 0) return lookup_batch_missing;
  if (count == 0) return 0;
  const std::uint32_t size = std::exchange(count, 0);
  lookup_sizes.push_back(size);
  if (!next_lookup_batches.empty() && next_lookup_batches.front().really_done == 0) {
    const int error = next_lookup_batches.front().error;
    next_lookup_batches.pop_front();
    return error;
  }
  if (size < fullest_bucket) return ENOSPC;
  auto element = elements.begin();
  if (cursor != nullptr && !forgets_cursor) {
    std::uint32_t number;
    std::memcpy(&number, cursor, sizeof number);
    element = elements.upper_bound(cursors_.at(number));
  }
  std::uint32_t limit = size;
  int error = 0;
  if (!next_lookup_batches.empty()) {
    limit = next_lookup_batches.front().really_done;
    error = next_lookup_batches.front().error;
    next_lookup_batches.pop_front();
  }
  for (; count < limit && element != elements.end(); ++count, ++element) {
    std::memcpy(static_cast<std::byte*>(keys) + count * info_.key_size, element->first.data(),
                info_.key_size);
    std::memcpy(static_cast<std::byte*>(values) + count * element_size(), element->second.data(),
                element_size());
  }
  if (count > 0) {
    const auto number = static_cast<std::uint32_t>(cursors_.size());
    cursors_.push_back(std::prev(element)->first);
    std::memcpy(next_cursor, &number, sizeof number);
  }
  time += call_cost + element_cost * count;
  if (error != 0) return error;
  return element == elements.end() && count < size ? ENOENT : 0;
}

}  // namespace mapgate::maps::test
