// SPDX-License-Identifier: Apache-2.0
#include "agent/state/learned_writer.h"

#include <algorithm>
#include <iterator>

namespace mapgate::state {
namespace {

// Short transactions, so that save_allocations on the event loop never waits long for this
// thread's.
constexpr std::size_t kChangesPerTransaction = 1024;

std::int64_t to_milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::expected<std::unique_ptr<LearnedWriter>, StoreError> LearnedWriter::start(
    const std::filesystem::path& file, const StoreOptions& options) {
  auto database = Database::open(file);
  if (!database) return std::unexpected(database.error());
  if (auto set = database->execute("PRAGMA synchronous=NORMAL"); !set)
    return std::unexpected(set.error());
  auto upsert = database->prepare(
      "INSERT INTO learned (workload, name, address, expires) VALUES (?1, ?2, ?3, ?4) "
      "ON CONFLICT DO UPDATE SET expires = excluded.expires");
  if (!upsert) return std::unexpected(upsert.error());
  auto remove =
      database->prepare("DELETE FROM learned WHERE workload = ?1 AND name = ?2 AND address = ?3");
  if (!remove) return std::unexpected(remove.error());
  auto expire = database->prepare("DELETE FROM learned WHERE expires <= ?1");
  if (!expire) return std::unexpected(expire.error());
  return std::unique_ptr<LearnedWriter>(new LearnedWriter(
      options, *std::move(database), *std::move(upsert), *std::move(remove), *std::move(expire)));
}

LearnedWriter::LearnedWriter(const StoreOptions& options, Database database, Statement upsert,
                             Statement remove, Statement expire)
    : options_(options),
      database_(std::move(database)),
      upsert_(std::move(upsert)),
      remove_(std::move(remove)),
      expire_(std::move(expire)),
      thread_([this] { run(); }) {}

LearnedWriter::~LearnedWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LearnedWriter::learn(LearnedAddress address) {
  const std::int64_t expires = to_milliseconds(address.expires);
  queue(std::move(address), expires);
}

void LearnedWriter::forget(LearnedAddress address) {
  queue(std::move(address), std::nullopt);
}

void LearnedWriter::queue(LearnedAddress address, std::optional<std::int64_t> expires) {
  Key key{std::move(address.workload), std::move(address.name), address.address};
  const std::lock_guard lock(mutex_);
  if (pending_.size() + writing_ >= options_.max_queued && !pending_.contains(key)) {
    ++health_.dropped;
    return;
  }
  pending_.insert_or_assign(std::move(key), expires);
  if (pending_.size() == 1) wake_.notify_one();
}

void LearnedWriter::purge(std::chrono::system_clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    purge_before_ = to_milliseconds(now);
  }
  wake_.notify_one();
}

Result LearnedWriter::flush() {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = rounds_begun_ + 1;  // one that is under way may have missed something
  flush_ = true;
  wake_.notify_one();
  ended_.wait(lock, [&] { return rounds_ended_ >= round; });
  if (health_.last_error) return std::unexpected(*health_.last_error);
  return {};
}

StoreHealth LearnedWriter::health() const {
  const std::lock_guard lock(mutex_);
  StoreHealth health = health_;
  health.queued = pending_.size() + writing_;
  return health;
}

void LearnedWriter::run() {
  std::unique_lock lock(mutex_);
  do {
    wake_.wait(lock, [&] { return stop_ || flush_ || !pending_.empty() || purge_before_; });
    // More changes of the same names may come, and one transaction for many is cheaper.
    wake_.wait_for(lock, options_.write_delay, [&] { return stop_ || flush_; });
    write_round(lock);
  } while (!stop_ || (!pending_.empty() && !health_.last_error));
}

void LearnedWriter::write_round(std::unique_lock<std::mutex>& lock) {
  flush_ = false;
  ++rounds_begun_;
  ChangeList changes;
  changes.reserve(pending_.size());
  std::ranges::move(pending_, std::back_inserter(changes));
  pending_.clear();
  writing_ = changes.size();
  const std::optional<std::int64_t> purge_before = purge_before_;

  std::span<ChangeList::value_type> rest(changes);
  Result result;
  lock.unlock();
  if (purge_before) result = write_expired(*purge_before);
  while (result && !rest.empty()) {
    const auto part = rest.first(std::min(rest.size(), kChangesPerTransaction));
    result = write(part);
    if (result) rest = rest.subspan(part.size());
  }
  lock.lock();

  health_.written += changes.size() - rest.size();
  health_.last_error.reset();
  if (result) {
    if (purge_before_ == purge_before) purge_before_.reset();
  } else {
    ++health_.failures;
    health_.last_error = result.error();
  }
  writing_ = 0;
  put_back(rest);
  ++rounds_ended_;
  ended_.notify_all();
}

Result LearnedWriter::write(std::span<const ChangeList::value_type> changes) {
  return database_.transaction([&]() -> Result {
    for (const auto& [key, expires] : changes) {
      Statement& statement = expires ? upsert_ : remove_;
      statement.bind(1, key.workload);
      statement.bind(2, key.name);
      statement.bind(3, std::span<const std::uint8_t>(key.address.bytes()));
      if (expires) statement.bind(4, *expires);
      if (auto done = statement.run(); !done) return done;
    }
    return {};
  });
}

Result LearnedWriter::write_expired(std::int64_t now) {
  expire_.bind(1, now);
  return expire_.run();
}

void LearnedWriter::put_back(std::span<ChangeList::value_type> changes) {
  for (auto& [key, expires] : changes) {
    if (pending_.size() < options_.max_queued) {
      pending_.try_emplace(std::move(key), expires);  // a newer change stays
    } else {
      ++health_.dropped;
    }
  }
}

}  // namespace mapgate::state
