// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/policy/address.h"
#include "agent/policy/allocations.h"

namespace mapgate::state {

enum class StoreErrorKind {
  kNotWritable,  // no permission, or a file system that is mounted read-only
  kDiskFull,
  kCorrupt,
  kIncompatible,  // written by a newer mapgate
  kBusy,          // another process holds the file
  kInputOutput,   // anything else
};

struct StoreError {
  StoreErrorKind kind = StoreErrorKind::kInputOutput;
  std::string text;  // for people, with the file
};

// An address that a workload learned for a name (normalised).
struct LearnedAddress {
  std::string workload;
  std::string name;
  policy::IpAddress address;
  std::chrono::system_clock::time_point expires;  // kept with a precision of 1 ms

  friend bool operator==(const LearnedAddress&, const LearnedAddress&) = default;
};

struct StoreOptions {
  // Learned addresses are written this long after they were handed in, at most 1 s.
  std::chrono::milliseconds write_delay{500};
  // Learned addresses waiting to be written; beyond that they are dropped and counted.
  std::size_t max_queued = 262144;
};

struct StoreHealth {
  std::size_t queued = 0;     // changes of learned addresses not written yet
  std::uint64_t written = 0;  // rows written or deleted
  std::uint64_t dropped = 0;  // changes lost because the queue was full
  std::uint64_t failures =
      0;  // write attempts that failed; their changes stay queued and are tried again
  std::optional<StoreError> last_error;  // of the last attempt, if it failed
};

// What must survive a restart: <state-dir>/state.db, an SQLite database in WAL mode.
//
// Allocations are written before save_allocations returns. Learned addresses are written behind by
// a thread of the store's: learn() and forget() only queue, and never wait for the disk. The
// destructor writes what is queued. learn(), forget() and health() may be called from any thread;
// the rest from one.
class Store {
 public:
  // Opens or creates the database in a directory that exists; kBusy if another process has it. A
  // file that is no sound database is moved aside to state.db.corrupt-<n>, with its WAL, and a
  // fresh one started: see moved_aside().
  [[nodiscard]] static std::expected<std::unique_ptr<Store>, StoreError> open(
      const std::filesystem::path& directory, const StoreOptions& options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Where a corrupt database went at open. Allocations are lost then: pinned maps may hold ids and
  // bits that mean something else now, and cannot be adopted.
  [[nodiscard]] const std::optional<std::filesystem::path>& moved_aside() const;

  // What is stored.
  [[nodiscard]] const policy::Allocations& allocations() const;
  // Makes what is stored equal to these; writes only what differs. All or nothing.
  [[nodiscard]] std::expected<void, StoreError> save_allocations(
      const policy::Allocations& allocations);

  // For the start: the stored addresses that expire after `now`. The others are deleted, behind.
  [[nodiscard]] std::expected<std::vector<LearnedAddress>, StoreError> load_learned(
      std::chrono::system_clock::time_point now);
  // Replaces the expiry that (workload, name, address) has, if any.
  void learn(LearnedAddress address);
  // `expires` does not matter.
  void forget(LearnedAddress address);
  // Deletes, behind, what has expired by `now`: without it the database would grow while the daemon
  // runs.
  void purge_expired(std::chrono::system_clock::time_point now);
  // Writes what is queued now; waits for it. Not for the event loop.
  [[nodiscard]] std::expected<void, StoreError> flush();

  [[nodiscard]] StoreHealth health() const;

 private:
  class Implementation;
  explicit Store(std::unique_ptr<Implementation> implementation);

  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mapgate::state
