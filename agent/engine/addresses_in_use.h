// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/dns/name_cache.h"
#include "agent/engine/connections.h"

namespace mapgate::engine {

// Tells the name cache which addresses workloads are connected to, so that these are evicted last:
// while the cache is crowded, at once and then every kInterval. For the loop's thread.
class AddressesInUse {
 public:
  static constexpr std::chrono::seconds kInterval{5};

  // All of it outlives this.
  AddressesInUse(boost::asio::io_context& io, Connections& connections, dns::NameCache& cache)
      : io_(io), connections_(connections), cache_(cache), timer_(io) {}

  // After the cache has grown.
  void watch();

 private:
  [[nodiscard]] boost::asio::awaitable<void> follow(std::weak_ptr<const bool> alive);

  boost::asio::io_context& io_;
  Connections& connections_;
  dns::NameCache& cache_;
  boost::asio::steady_timer timer_;
  bool following_ = false;
  // A coroutine of the loop may go on after this object is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
