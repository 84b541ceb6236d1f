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
  kWaiting,  // nothing is pinned there
  kFailed,   // it cannot be used, or the entries do not fit it; see the error
  kSyncing,  // the kernel is being brought to what is declared
  kFailing,  // the kernel has what is declared, apart from rows that fail
  kInSync,   // the kernel has what is declared
};
[[nodiscard]] std::string_view to_string(DeclaredMapState state);

// The maps that the spec declares. Each is opened, filled and kept on its own: one that is not
// there, cannot be used, or is written by another, is tried again and holds up nothing. Their pins
// are watched: a map that comes in the place of one that is kept is kept from then on, if it is
// like it. For the thread of `io`; maps are made and entries are read by threads of its own.
class DeclaredMaps {
 public:
  struct Options {
    std::filesystem::path spec_file;   // named by faults
    std::filesystem::path own_folder;  // where mapgate's own maps are pinned
    std::chrono::milliseconds interval = std::chrono::seconds(1);  // between looks at the pins
  };

  // What a spec's maps are to hold, read and checked.
  struct Prepared {
    struct Part {
      std::shared_ptr<const policy::MapSpec> spec;
      std::shared_ptr<DeclaredTarget> target;  // null: nothing is known of the map
      std::shared_ptr<OpenedMap> opened;       // null if it is in use already, or not there
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

  // What is wrong now, a line for each map that is not as it was declared, apart from those that
  // are waited for.
  [[nodiscard]] std::vector<std::string> problems() const;

  // One of them. Valid until the next put_in_force().
  struct Entry {
    std::shared_ptr<const policy::MapSpec> spec;  // without its entries once they are in force
    std::optional<maps::MapLock> lock;            // for as long as it is written
    std::unique_ptr<DeclaredMap> map;             // null: none was there yet
    bool pinned = false;                          // the pin leads to `map`
    std::string error;                            // why there is no map, or not the one at the pin
    std::vector<policy::SpecError> faults;
    std::uint32_t refused_id = 0;  // the map that cannot be kept, or that the entries do not fit
    bool opening = false;
    bool reported_failing = false;
    // Attempts to make it that failed, and rounds to leave out before the next.
    std::uint32_t failures = 0;
    std::uint32_t rounds_to_wait = 0;

    [[nodiscard]] DeclaredMapState state() const;
  };
  [[nodiscard]] const std::vector<std::unique_ptr<Entry>>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(std::string_view name) const;

 private:
  using Rows = std::expected<DeclaredRows, std::vector<policy::SpecError>>;

  // The entry that keeps the map which `spec` declares, unless the pin leads to another, with this
  // id, or (0) to none while another would be made.
  [[nodiscard]] Entry* find_kept(const policy::MapSpec& spec, std::uint32_t id);
  [[nodiscard]] std::vector<policy::SpecError> check_pins(
      const std::vector<policy::MapSpec>& specs) const;
  void fail(Entry& entry, std::string error);
  void fail_to_make(Entry& entry, std::string error);
  void fail_to_lock(Entry& entry, std::uint32_t map_id, const maps::MapError& error);

  void look_again_later();
  void look(Entry& entry);
  void look_at_missing_pin(Entry& entry);
  void report_failing(Entry& entry);

  void open(Entry& entry, Prepared::Part part);
  [[nodiscard]] boost::asio::awaitable<void> open_part(Entry& entry, Prepared::Part part,
                                                       std::weak_ptr<const bool> generation);
  [[nodiscard]] boost::asio::awaitable<Rows> load(std::shared_ptr<const policy::MapSpec> spec,
                                                  std::shared_ptr<DeclaredTarget> target);
  void fill(Entry& entry, Prepared::Part part, maps::MapLock lock);
  void move(Entry& entry, OpenedMap opened, maps::MapLock lock);

  const DeclaredMap::Environment environment_;
  const Options options_;
  const std::string spec_file_;
  std::vector<std::unique_ptr<Entry>> entries_;
  boost::asio::steady_timer timer_;
  // Replaced with every put_in_force(): what was begun for the entries before ends by itself.
  std::shared_ptr<const bool> generation_ = std::make_shared<const bool>(true);
  std::stop_source stop_;
  boost::asio::thread_pool openers_{4};  // makes maps; one that takes long holds up no other
  boost::asio::thread_pool loader_{1};
};

}  // namespace mapgate::engine
