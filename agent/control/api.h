// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mapgate/maps/map_operations.h>
#include <boost/asio/awaitable.hpp>
#include <nlohmann/json_fwd.hpp>

#include "agent/control/http.h"
#include "agent/dns/proxy.h"
#include "agent/engine/datapath_health.h"
#include "agent/engine/declared_maps.h"
#include "agent/engine/policy_engine.h"
#include "agent/engine/spec_controller.h"
#include "bpf/abi.h"

namespace mapgate::control {

// What the API shows and does, see docs/cli.md. For the engine's thread.
class Api {
 public:
  // What is not the engine's. All of it outlives the API.
  struct Sources {
    engine::PolicyEngine& engine;
    engine::SpecController& specs;
    engine::DeclaredMaps& declared;
    maps::MapCalls& map_calls;
    std::function<std::vector<maps::MapStatus>()> maps;  // in the order of their MapIndex
    std::function<dns::ProxyCounters()> dns;
    std::function<std::optional<mg_counters>(engine::WorkloadId)> counters;
    std::function<engine::DatapathHealth()> datapath;
    std::string foreign_sockets_missing;  // why sockets handed in from elsewhere are not judged;
                                          // empty: they are
    std::string version;
  };
  // Requests that wait at a time; one more is refused with 503.
  static constexpr std::size_t kMaxWaiters = 1024;

  explicit Api(Sources sources) : sources_(std::move(sources)) {}

  [[nodiscard]] boost::asio::awaitable<HttpResponse> handle(HttpRequest request);

 private:
  class WaiterGuard;

  [[nodiscard]] HttpResponse status() const;
  [[nodiscard]] HttpResponse entries(const QueryParameters& query) const;
  // Of a map that the spec declares: what the kernel has, or rows in a state.
  [[nodiscard]] boost::asio::awaitable<HttpResponse> declared_entries(QueryParameters query);
  [[nodiscard]] HttpResponse names(const QueryParameters& query) const;
  [[nodiscard]] HttpResponse answers() const;
  [[nodiscard]] boost::asio::awaitable<HttpResponse> wait(QueryParameters query);
  [[nodiscard]] boost::asio::awaitable<HttpResponse> reload(QueryParameters query);

  [[nodiscard]] nlohmann::ordered_json describe_maps() const;
  [[nodiscard]] nlohmann::ordered_json describe_workloads() const;
  [[nodiscard]] nlohmann::ordered_json describe_spec() const;
  [[nodiscard]] nlohmann::ordered_json describe_errors() const;

  Sources sources_;
  // Shared with the requests that wait: their coroutines may be destroyed later than this.
  const std::shared_ptr<std::size_t> waiters_ = std::make_shared<std::size_t>(0);
};

}  // namespace mapgate::control
