// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <mapgate/maps/map_operations.h>
#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/datapath/datapath.h"
#include "agent/engine/capacity_log.h"
#include "agent/engine/datapath_health.h"
#include "agent/engine/map_control.h"
#include "agent/engine/reconcile_loop.h"

namespace mapgate::engine {

// Looks every second whether the kernel still has what it should: pins, links, maps that can be
// written, room in them. Puts right what it can and says so, once. And changes the maps' sizes. For
// the thread of `io`.
class DatapathKeeper final : public MapControl {
 public:
  // All of these outlive it.
  struct Environment {
    boost::asio::io_context& io;
    datapath::Datapath& datapath;
    maps::MapOperations& operations;
    std::span<const std::string_view> map_names;  // by index in `operations`
    // The datapath's map of this name, as `operations` should have it.
    std::function<std::expected<maps::Map, std::string>(std::string_view)> open_map;
    spdlog::logger& log;
  };

  explicit DatapathKeeper(const Environment& environment);
  DatapathKeeper(const DatapathKeeper&) = delete;
  DatapathKeeper& operator=(const DatapathKeeper&) = delete;

  // `loop` writes the maps; it outlives the last handler of `io`. Once, before anything else.
  void start(ReconcileLoop& loop);

  [[nodiscard]] boost::asio::awaitable<std::expected<void, std::string>> resize(
      policy::MapSizes sizes) override;
  [[nodiscard]] bool awaits_contents() const override { return datapath_.awaits_contents(); }
  [[nodiscard]] std::expected<void, std::string> contents_complete() override;

  [[nodiscard]] const DatapathHealth& health() const { return health_; }

 private:
  using Outcome = std::expected<void, std::string>;

  [[nodiscard]] boost::asio::awaitable<void> keep();
  [[nodiscard]] boost::asio::awaitable<void> inspect();
  void log_problems(std::vector<std::string> problems);
  // One at a time, with the loop paused.
  [[nodiscard]] boost::asio::awaitable<Outcome> replace(datapath::MapSizes sizes,
                                                        std::vector<std::string> names);
  [[nodiscard]] boost::asio::awaitable<Outcome> copy_and_finish(datapath::MapReplacement& next);
  void use_new_maps(const std::vector<std::string>& names);

  boost::asio::io_context& io_;
  datapath::Datapath& datapath_;
  maps::MapOperations& operations_;
  std::span<const std::string_view> map_names_;
  std::function<std::expected<maps::Map, std::string>(std::string_view)> open_map_;
  spdlog::logger& log_;
  ReconcileLoop* loop_ = nullptr;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer turn_;  // never fires; cancelled when a replacement ends
  bool replacing_ = false;
  CapacityLog capacity_;
  std::set<std::string> known_problems_;  // of the last inspection
  DatapathHealth health_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
