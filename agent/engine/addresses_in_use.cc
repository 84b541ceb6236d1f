// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/addresses_in_use.h"

#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;

std::vector<dns::WorkloadAddress> remotes_of(const std::vector<OpenConnection>& connections) {
  std::vector<dns::WorkloadAddress> remotes;
  remotes.reserve(connections.size());
  for (const OpenConnection& connection : connections)
    remotes.push_back({connection.workload, policy::IpAddress(connection.socket.remote.address)});
  return remotes;
}

}  // namespace

void AddressesInUse::watch() {
  if (!cache_.is_crowded() || std::exchange(following_, true)) return;
  asio::co_spawn(io_, follow(alive_), asio::detached);
}

asio::awaitable<void> AddressesInUse::follow(std::weak_ptr<const bool> alive) {
  if (alive.expired()) co_return;
  while (cache_.is_crowded()) {
    const auto open = co_await connections_.list();
    if (alive.expired()) co_return;
    // Where they cannot be listed, what was resolved least recently goes first.
    if (open) cache_.set_in_use(remotes_of(*open));
    timer_.expires_after(kInterval);
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (alive.expired()) co_return;
  }
  cache_.set_in_use({});
  following_ = false;
}

}  // namespace mapgate::engine
