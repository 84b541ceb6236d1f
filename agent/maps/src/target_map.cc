// SPDX-License-Identifier: Apache-2.0
#include "agent/maps/src/target_map.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <boost/unordered/unordered_flat_set.hpp>

#include <mapgate/maps/lpm.h>

namespace mapgate::maps {
namespace {

using reconciler::ErrorClass;
using reconciler::OperationError;

// Errors that the kernel raises for one element of a batch, with `count` the number done before it.
// For every other error `count` may be just what was passed in.
bool is_element_error(int error) {
  switch (error) {
    case E2BIG:
    case ENOSPC:
    case ENOENT:
    case EEXIST:
    case EBUSY:
    case EDEADLK:
    case ETIMEDOUT:
    case ENOMEM:
      return true;
    default:
      return false;
  }
}

// Inner maps made or read at a time: each costs a descriptor, and as much time as its contents.
constexpr std::size_t kInnerMaps = 16;

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

OperationError permanent(std::string text) {
  return {ErrorClass::kPermanent, EINVAL, std::move(text)};
}

}  // namespace

TargetMap::TargetMap(MapIndex index, Map map, MapCalls& calls, MapOperations::Options options)
    : index_(index),
      map_(std::move(map)),
      calls_(calls),
      options_(std::move(options)),
      cpu_value_size_((map_.info().value_size + std::size_t{7}) / 8 * 8),
      element_size_(is_per_cpu(map_.info().type) ? calls_.possible_cpus() * cpu_value_size_
                                                 : map_.info().value_size),
      write_size_(options_.call_limit, map_.info().key_size + element_size_),
      delete_size_(write_size_),
      value_(element_size_),
      scan_(map_, calls_, options_.now, options_.call_limit, element_size_) {
  if (is_map_of_maps(map_.info().type))
    inner_.emplace(options_.inner_maps.at(index_), calls_, options_.now, options_.call_limit);
  probe();
}

// Batches of nothing: success if there is such a call, and no effect.
void TargetMap::probe() {
  std::vector<std::byte> key(std::max<std::size_t>(map_.info().key_size, 4));
  std::vector<std::byte> value(element_size_);
  std::uint32_t count = 0;
  status_.update_batch = calls_.update_batch(map_.fd(), key.data(), value.data(), count) == 0;
  count = 0;
  status_.delete_batch = calls_.remove_batch(map_.fd(), key.data(), count) == 0;
  count = 0;
  // Empty places of an array of maps end such a call. And what takes time is the inner maps.
  status_.lookup_batch = !inner_ && calls_.lookup_batch(map_.fd(), nullptr, key.data(), key.data(),
                                                        value.data(), count) == 0;
}

std::optional<OperationError> TargetMap::refusal(const Operation& operation) const {
  const MapInfo& info = map_.info();
  const auto refused = [&](const std::string& why) {
    return permanent("map \"" + info.name + "\": " + why);
  };
  const auto wrong_size = [&](const char* what, std::size_t is, std::size_t want) {
    return refused(what + (" has " + std::to_string(is)) + " bytes, not " + std::to_string(want));
  };
  const auto key = operation.key.bytes();
  if (key.size() != info.key_size) return wrong_size("key", key.size(), info.key_size);
  if (operation.value && !inner_ && operation.value->size() != info.value_size)
    return wrong_size("value", operation.value->size(), info.value_size);
  if (operation.value && inner_) {
    const auto problem = inner_map_problem(inner_->description(), operation.value->bytes());
    if (!problem.empty()) return refused(problem);
  }
  if (info.type == BPF_MAP_TYPE_LPM_TRIE && !is_canonical_lpm_key(key))
    return refused("key has bits set past its prefix, or too long a prefix");
  return std::nullopt;
}

OperationError TargetMap::failure(MapAction action, int error) const {
  const MapInfo& info = map_.info();
  const ErrorClass error_class = classify(error, action, info.type);
  const std::string name = "map \"" + info.name + "\"";
  const std::string size = " (" + std::to_string(info.max_entries) + " entries)";
  if (error_class == ErrorClass::kCapacity) return {error_class, error, name + " is full" + size};
  if (error == E2BIG && error_class == ErrorClass::kPermanent)
    return {error_class, error, "index is outside of " + name + size};
  const char* doing = action == MapAction::kWrite    ? "write"
                      : action == MapAction::kDelete ? "delete"
                                                     : "read";
  std::string text = name + ": " + doing + ": " + describe_errno(error);
  if (error == EINVAL && inner_ && action == MapAction::kWrite)
    text += " (are its inner maps made another way?)";
  if (error == EPERM) text += " (frozen or read-only?)";
  if (error == EAGAIN && action == MapAction::kRead) text += " (it changes faster than it is read)";
  return {error_class, error, std::move(text)};
}

std::expected<void, OperationError> TargetMap::ensure_open() {
  if (!lost_) return {};
  const auto lost = [&](int code, const std::string& reason) {
    return std::unexpected(OperationError{ErrorClass::kTargetLost, code,
                                          "map \"" + map_.info().name + "\" is lost: " + reason});
  };
  if (map_.pin_path().empty()) return lost(EBADF, "it has no pin to open it by");
  auto opened = Map::open_pin(map_.pin_path());
  if (!opened) return lost(opened.error().code, opened.error().text());
  const MapInfo& info = opened->info();
  if (info.type != map_.info().type || info.key_size != map_.info().key_size ||
      info.value_size != map_.info().value_size)
    return lost(EINVAL, map_.pin_path() + " is a map of another kind now");
  map_.abandon();
  map_ = std::move(*opened);
  lost_ = false;
  ++status_.reopened;
  entries_ = {};
  seen_ = 0;
  scan_.begin();
  probe();
  return {};
}

void TargetMap::queue(std::size_t position, Round round) {
  const Operation& operation = round.batch[position];
  if (auto error = refusal(operation)) {
    ++status_.errors[static_cast<std::size_t>(error->error_class)];
    round.results[position].error = std::move(error);
    return;
  }
  (operation.value ? writes_ : deletes_).push_back(static_cast<std::uint32_t>(position));
}

void TargetMap::run(Round round) {
  if (const auto open = ensure_open(); !open) {
    fail_all(round, open.error());
  } else {
    const std::uint64_t removed_before = status_.removed;
    write(writes_, round);
    keep_scan_in_place(round);
    run(MapAction::kDelete, deletes_, round);
    retry_what_did_not_fit(round, removed_before);
  }
  count_errors(writes_, round);
  count_errors(deletes_, round);
  writes_.clear();
  deletes_.clear();
}

void TargetMap::fail_all(Round round, const OperationError& error) {
  for (const std::uint32_t position : writes_) round.results[position].error = error;
  for (const std::uint32_t position : deletes_) round.results[position].error = error;
}

void TargetMap::count_errors(const Positions& positions, Round round) {
  for (const std::uint32_t position : positions)
    if (const auto& error = round.results[position].error)
      ++status_.errors[static_cast<std::size_t>(error->error_class)];
}

// Of a key as the kernel shows it.
RowKey TargetMap::row_of(std::span<const std::byte> key) {
  if (map_.info().type != BPF_MAP_TYPE_LPM_TRIE) return {index_, key};
  key_.assign(key.begin(), key.end());
  (void)canonicalize_lpm_key(key_);  // a trie holds no prefix that is too long
  return {index_, key_};
}

// A hash that is read in batches goes on by bucket; everything else goes on from the last key read.
void TargetMap::keep_scan_in_place(Round round) {
  const bool by_bucket = status_.lookup_batch && map_.info().type != BPF_MAP_TYPE_LPM_TRIE;
  const bool by_index = has_indices(map_.info().type);
  if (!scanning_ || by_bucket || by_index || deletes_.empty()) return;
  boost::unordered_flat_set<RowKey, RowKeyHash> going;
  for (const std::uint32_t position : deletes_) going.insert(round.batch[position].key);
  scan_.step_over([&](std::span<const std::byte> key) { return going.contains(row_of(key)); });
}

// The batch's deletes may have made room. And where there should have been room all along, "full"
// may have been a passing state of the per-CPU lists that free elements wait in.
void TargetMap::retry_what_did_not_fit(Round round, std::uint64_t removed_before) {
  if (is_array()) return;
  if (status_.removed == removed_before && entries_.get() >= map_.info().max_entries) return;
  Positions again;
  for (const std::uint32_t position : writes_) {
    const auto& error = round.results[position].error;
    if (error && error->error_class == ErrorClass::kCapacity) again.push_back(position);
  }
  write(again, round);
}

void TargetMap::write(std::span<const std::uint32_t> positions, Round round) {
  if (!inner_) return run(MapAction::kWrite, positions, round);
  for (; !positions.empty();
       positions = positions.subspan(std::min(positions.size(), kInnerMaps))) {
    run(MapAction::kWrite,
        make_inner_maps(positions.first(std::min(positions.size(), kInnerMaps)), round), round);
    made_.clear();  // the outer map holds them now
  }
}

// Those whose inner maps are ready.
TargetMap::Positions TargetMap::make_inner_maps(std::span<const std::uint32_t> positions,
                                                Round round) {
  Positions ready;
  for (const std::uint32_t position : positions) {
    auto made = inner_->make(round.batch[position].value->bytes());
    if (made) {
      made_.emplace(position, std::move(*made));
      ready.push_back(position);
    } else {
      round.results[position].error = failure(MapAction::kWrite, made.error().code);
      round.results[position].error->text += " (" + made.error().step + ")";
    }
  }
  return ready;
}

void TargetMap::encode(std::uint32_t position, const Operation& operation, std::byte* to) const {
  if (!operation.value) {
    std::memset(to, 0, element_size_);
  } else if (inner_) {
    const int fd = made_.at(position).fd();
    std::memcpy(to, &fd, sizeof fd);
  } else if (is_per_cpu(map_.info().type)) {
    std::memset(to, 0, element_size_);
    for (std::size_t at = 0; at < element_size_; at += cpu_value_size_)
      std::memcpy(to + at, operation.value->data(), map_.info().value_size);
  } else {
    std::memcpy(to, operation.value->data(), element_size_);
  }
}

std::expected<std::optional<RowValue>, int> TargetMap::decode(std::span<const std::byte> value) {
  if (inner_) {
    std::uint32_t id;
    std::memcpy(&id, value.data(), sizeof id);
    auto held = inner_->read(id);
    if (held) return std::move(*held);
    if (held.error() == ENOENT) return std::nullopt;
    return std::unexpected(held.error());
  }
  const std::size_t size = map_.info().value_size;
  if (!is_per_cpu(map_.info().type)) return RowValue(value);
  const auto first = value.first(size);
  for (std::size_t at = cpu_value_size_; at < value.size(); at += cpu_value_size_)
    if (!std::ranges::equal(value.subspan(at, size), first))
      return RowValue(value.first(std::min(value.size(), RowValue::kMaxSize)));
  return RowValue(first);
}

void TargetMap::run(MapAction action, std::span<const std::uint32_t> positions, Round round) {
  const bool has_batch =
      action == MapAction::kWrite || is_array() ? status_.update_batch : status_.delete_batch;
  const BatchSize& batch_size = action == MapAction::kWrite ? write_size_ : delete_size_;
  while (!positions.empty()) {
    const std::size_t size = has_batch ? std::min(positions.size(), batch_size.get()) : 1;
    std::size_t done = 1;
    if (size > 1)
      done = run_batch(action, positions.first(size), round);
    else
      run_single(action, positions.front(), round, false);
    positions = positions.subspan(done);
  }
}

void TargetMap::gather(std::span<const std::uint32_t> positions, Round round) {
  const std::size_t key_size = map_.info().key_size;
  keys_.resize(positions.size() * key_size);
  values_.resize(positions.size() * element_size_);
  std::byte* key = keys_.data();
  std::byte* value = values_.data();
  for (const std::uint32_t position : positions) {
    const Operation& operation = round.batch[position];
    std::memcpy(key, operation.key.bytes().data(), key_size);
    if (operation.value || is_array()) encode(position, operation, value);
    key += key_size;
    value += element_size_;
  }
}

int TargetMap::call_batch(MapAction action, std::uint32_t& count) {
  BatchSize& batch_size = action == MapAction::kWrite ? write_size_ : delete_size_;
  const std::uint32_t passed = count;
  const auto start = options_.now();
  const int error = action == MapAction::kWrite || is_array()
                        ? calls_.update_batch(map_.fd(), keys_.data(), values_.data(), count)
                        : calls_.remove_batch(map_.fd(), keys_.data(), count);
  if (error == 0) batch_size.record(passed, options_.now() - start);
  return error;
}

// Returns how many positions it has settled, at least one.
std::size_t TargetMap::run_batch(MapAction action, std::span<const std::uint32_t> positions,
                                 Round round) {
  gather(positions, round);
  auto count = static_cast<std::uint32_t>(positions.size());
  const int error = call_batch(action, count);
  const bool exact =
      error == 0 ? count == positions.size() : is_element_error(error) && count < positions.size();
  if (!exact) {
    // Nobody knows which were done. Both actions can be repeated.
    for (const std::uint32_t position : positions) run_single(action, position, round, true);
    return positions.size();
  }
  for (const std::uint32_t position : positions.first(count)) settle(action, position, round, 0);
  if (error == 0) return count;
  settle(action, positions[count], round, error);
  return std::size_t{count} + 1;
}

// `may_be_done`: a batch call that did not say how far it got had this element.
void TargetMap::run_single(MapAction action, std::uint32_t position, Round round,
                           bool may_be_done) {
  const Operation& operation = round.batch[position];
  const std::byte* key = operation.key.bytes().data();
  int error = 0;
  if (operation.value || is_array()) {
    encode(position, operation, value_.data());
    error = calls_.update(map_.fd(), key, value_.data());
  } else {
    error = calls_.remove(map_.fd(), key);
  }
  // A parked row may wait for the room that the batch call made.
  if (may_be_done && action == MapAction::kDelete && error == ENOENT && operation.held) error = 0;
  settle(action, position, round, error);
}

void TargetMap::settle(MapAction action, std::uint32_t position, Round round, int error) {
  const Operation& operation = round.batch[position];
  Result& result = round.results[position];
  result.error.reset();
  // An array has no element past its end: it is as absent as can be.
  const bool was_absent = action == MapAction::kDelete && (error == ENOENT || error == E2BIG);
  if (error != 0 && !was_absent) {
    lost_ = lost_ || error == EBADF;
    result.error = failure(action, error);
    return;
  }
  if (was_absent) {
    // Others were first.
    if (operation.held && !is_array()) entries_.removed();
    return;
  }
  if (action == MapAction::kWrite) {
    ++status_.written;
    if (!operation.held) entries_.inserted();
    return;
  }
  ++status_.removed;
  entries_.removed();
  result.freed = !is_array();
}

std::expected<void, OperationError> TargetMap::scan_begin() {
  if (auto open = ensure_open(); !open) return open;
  scan_.begin();
  entries_.begin_scan();
  seen_ = 0;
  scanning_ = true;
  return {};
}

std::expected<bool, OperationError> TargetMap::scan_next(
    std::size_t max, std::vector<std::pair<RowKey, RowValue>>& entries) {
  if (auto open = ensure_open(); !open) return std::unexpected(open.error());
  int unreadable = 0;
  const auto visit = [&](std::span<const std::byte> key, std::span<const std::byte> value) {
    auto decoded = decode(value);
    if (!decoded) unreadable = decoded.error();
    if (!decoded || !*decoded) return;
    ++seen_;
    entries.emplace_back(row_of(key), std::move(**decoded));
  };
  auto end = scan_.next(status_.lookup_batch, inner_ ? std::min(max, kInnerMaps) : max, visit);
  if (unreadable != 0) end = std::unexpected(unreadable);
  if (!end) {
    lost_ = lost_ || end.error() == EBADF;
    scanning_ = false;
    return std::unexpected(failure(MapAction::kRead, end.error()));
  }
  if (*end) {
    entries_.end_scan(seen_);
    scanning_ = false;
  }
  return *end;
}

bool TargetMap::is_absence(const RowValue& value) const {
  return is_array() && value.size() == map_.info().value_size && is_zero(value.bytes());
}

void TargetMap::replace(Map map) {
  map_ = std::move(map);
  lost_ = false;
  scan_.begin();
}

MapStatus TargetMap::status() const {
  MapStatus status = status_;
  status.info = map_.info();
  const std::uint64_t most = status.info.max_entries;
  status.entries = is_array() ? most : std::min(entries_.get(), most);
  return status;
}

}  // namespace mapgate::maps
