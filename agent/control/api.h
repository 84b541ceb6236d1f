// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <boost/asio/awaitable.hpp>

#include "agent/control/api_sources.h"
#include "agent/control/http.h"

namespace mapgate::control {

// What the API shows and does, see docs/cli.md. For the engine's thread.
class Api {
 public:
  // Requests that wait at a time; one more is refused with 503.
  static constexpr std::size_t kMaxWaiters = 1024;

  explicit Api(ApiSources sources) : sources_(std::move(sources)) {}

  [[nodiscard]] boost::asio::awaitable<HttpResponse> handle(HttpRequest request);

 private:
  class WaiterGuard;

  [[nodiscard]] HttpResponse entries(const QueryParameters& query) const;
  // Of a map that the spec declares: what the kernel has, or rows in a state.
  [[nodiscard]] boost::asio::awaitable<HttpResponse> declared_entries(QueryParameters query);
  [[nodiscard]] HttpResponse names(const QueryParameters& query) const;
  [[nodiscard]] HttpResponse gates(const QueryParameters& query) const;
  [[nodiscard]] HttpResponse answers() const;
  [[nodiscard]] boost::asio::awaitable<HttpResponse> wait(QueryParameters query);
  [[nodiscard]] boost::asio::awaitable<HttpResponse> reload(QueryParameters query);

  ApiSources sources_;
  // Shared with the requests that wait: their coroutines may be destroyed later than this.
  const std::shared_ptr<std::size_t> waiters_ = std::make_shared<std::size_t>(0);
};

}  // namespace mapgate::control
