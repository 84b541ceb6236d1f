// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_error.h>
#include <mapgate/maps/map_lock.h>
#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "agent/engine/declared_map.h"
#include "agent/policy/map_spec.h"
#include "agent/policy/spec.h"

namespace mapgate::engine {

enum class DeclaredMapState : std::uint8_t {
  kWaiting,  // nothing is pinned there yet
  kFailed,   // it cannot be used, or the entries do not fit it; see the error
  kSyncing,  // the kernel is being brought to what is declared
  kInSync,   // the kernel has what is declared, apart from rows that fail
};
[[nodiscard]] std::string_view to_string(DeclaredMapState state);

// The maps that the spec declares. Each is opened, filled and kept on its own: one that is not
// there, cannot be used, or is written by another, is tried again and holds up nothing. For the
// thread of `io`; entries are read by a thread of its own.
class DeclaredMaps {
 public:
  struct Options {
    std::filesystem::path spec_file;   // named by faults
    std::filesystem::path own_folder;  // where mapgate's own maps are pinned
    std::chrono::milliseconds retry_interval = std::chrono::seconds(1);
  };

  // What a spec's maps are to hold, read and checked.
  struct Prepared {
    struct Part {
      std::shared_ptr<policy::MapSpec> spec;
      std::shared_ptr<DeclaredTarget> target;  // null: nothing is known of the map
      std::optional<OpenedMap> opened;         // empty if it is in use already, or not there
      std::optional<DeclaredRows> rows;
      std::string error;  // why it cannot be opened
    };
    std::vector<Part> parts;
  };
  using PreparedPointer = std::unique_ptr<Prepared>;

  DeclaredMaps(const DeclaredMap::Environment& environment, Options options);
  ~DeclaredMaps();
  DeclaredMaps(const DeclaredMaps&) = delete;
  DeclaredMaps& operator=(const DeclaredMaps&) = delete;

  // Reads and checks all entries. Nothing changes. The entries of a map that is not there yet are
  // checked when it appears.
  [[nodiscard]] boost::asio::awaitable<
      std::expected<PreparedPointer, std::vector<policy::SpecError>>>
  prepare(std::vector<policy::MapSpec> specs);
  // Maps that are not declared any more are let go of, as they are.
  void put_in_force(PreparedPointer prepared);
  // Until every map is in sync, or says why not.
  [[nodiscard]] boost::asio::awaitable<void> settled();

  // One of them. Valid until the next put_in_force().
  struct Entry {
    policy::MapSpec spec;               // without its entries once they are in force
    std::optional<maps::MapLock> lock;  // for as long as it is written, or about to be
    std::unique_ptr<DeclaredMap> map;   // null: not open
    std::string error;                  // why not
    std::vector<policy::SpecError> faults;
    std::uint32_t refused_id = 0;  // the map that cannot be kept, or that the entries do not fit
    bool locking = false;
    bool loading = false;

    [[nodiscard]] DeclaredMapState state() const;
  };
  [[nodiscard]] const std::vector<std::unique_ptr<Entry>>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(std::string_view name) const;

 private:
  using Rows = std::expected<DeclaredRows, std::vector<policy::SpecError>>;

  [[nodiscard]] Entry* find_same(const policy::MapSpec& spec);
  [[nodiscard]] std::vector<policy::SpecError> check_pins(
      const std::vector<policy::MapSpec>& specs) const;
  void open_now(Entry& entry);
  void fail(Entry& entry, std::string error);
  void fail_to_lock(Entry& entry, std::uint32_t map_id, const maps::MapError& error);
  void retry_later();
  void retry();
  [[nodiscard]] boost::asio::awaitable<void> fill(std::weak_ptr<const bool> generation,
                                                  Entry& entry, OpenedMap opened);
  [[nodiscard]] boost::asio::awaitable<Rows> load(std::shared_ptr<policy::MapSpec> spec,
                                                  std::shared_ptr<DeclaredTarget> target);
  void use(Entry& entry, OpenedMap opened, DeclaredRows rows, schema::MapLayouts layouts);

  const DeclaredMap::Environment environment_;
  const Options options_;
  const std::string spec_file_;
  std::vector<std::unique_ptr<Entry>> entries_;
  boost::asio::steady_timer retry_timer_;
  // Replaced with every put_in_force(): what was begun for the entries before ends by itself.
  std::shared_ptr<const bool> generation_ = std::make_shared<const bool>(true);
  std::stop_source stop_;
  boost::asio::thread_pool loader_{1};
};

}  // namespace mapgate::engine
