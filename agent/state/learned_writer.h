// SPDX-License-Identifier: Apache-2.0
// The thread that writes learned addresses behind. Internal to agent/state.
#pragma once

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/state/database.h"
#include "agent/state/store.h"

namespace mapgate::state {

// Owns a connection of its own. Everything public may be called from any thread.
class LearnedWriter {
 public:
  [[nodiscard]] static std::expected<std::unique_ptr<LearnedWriter>, StoreError> start(
      const std::filesystem::path& file, const StoreOptions& options);
  // Writes what is queued, if it can.
  ~LearnedWriter();
  LearnedWriter(const LearnedWriter&) = delete;
  LearnedWriter& operator=(const LearnedWriter&) = delete;

  void learn(LearnedAddress address);
  void forget(LearnedAddress address);
  // Deletes what has expired by then.
  void purge(std::chrono::system_clock::time_point now);
  [[nodiscard]] Result flush();
  [[nodiscard]] StoreHealth health() const;

 private:
  struct Key {
    std::string workload;
    std::string name;
    policy::IpAddress address;

    friend bool operator==(const Key&, const Key&) = default;
    friend std::size_t hash_value(const Key& key) {
      std::size_t seed = 0;
      boost::hash_combine(seed, key.workload);
      boost::hash_combine(seed, key.name);
      boost::hash_combine(seed, key.address);
      return seed;
    }
  };
  // The expiry in milliseconds since the epoch; none means delete. Later changes of a key replace
  // earlier ones.
  using Changes = boost::unordered_flat_map<Key, std::optional<std::int64_t>>;
  using ChangeList = std::vector<std::pair<Key, std::optional<std::int64_t>>>;

  LearnedWriter(const StoreOptions& options, Database database, Statement upsert, Statement remove,
                Statement expire);

  void queue(LearnedAddress address, std::optional<std::int64_t> expires);
  void run();
  void write_round(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Result write(std::span<const ChangeList::value_type> changes);
  [[nodiscard]] Result write_expired(std::int64_t now);
  void put_back(std::span<ChangeList::value_type> changes);

  const StoreOptions options_;
  Database database_;
  Statement upsert_;
  Statement remove_;
  Statement expire_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;   // the thread
  std::condition_variable ended_;  // those who wait for a round
  Changes pending_;
  std::optional<std::int64_t> purge_before_;
  StoreHealth health_;  // `queued` is kept as writing_ + pending_.size()
  std::size_t writing_ = 0;
  std::uint64_t rounds_begun_ = 0;
  std::uint64_t rounds_ended_ = 0;
  bool flush_ = false;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace mapgate::state
