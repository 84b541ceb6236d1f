// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "agent/control/http.h"

namespace mapgate::control {

struct HttpServerOptions {
  std::size_t max_connections = 1280;  // one more is told 503 and closed
  std::size_t max_header_bytes = 8 * 1024;
  std::size_t max_body_bytes = 64 * 1024;
  std::chrono::seconds idle_timeout{
      60};  // for a whole request to come in, and for a response to go out
};

// HTTP/1.1 over a Unix socket, for one thread: that of its executor. Requests of one connection are
// answered one after the other; a request may take as long as it likes. What cannot be parsed, has
// no Host header or is too big is refused before the handler sees it.
class HttpServer {
 public:
  // Runs as a coroutine of the connection. When the client goes away it is cancelled: whatever it
  // awaits ends with operation_aborted, and its response is dropped.
  using Handler = std::function<boost::asio::awaitable<HttpResponse>(HttpRequest)>;

  // Listens at `socket`, mode 0660, in place of a socket that nobody serves any more. The error is
  // one line.
  [[nodiscard]] static std::expected<std::unique_ptr<HttpServer>, std::string> listen(
      const boost::asio::any_io_executor& executor, const std::filesystem::path& socket,
      HttpServerOptions options, Handler handler);
  // Closes the connections and removes the socket.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::size_t open_connections() const;

 private:
  class Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// An error as RFC 9457 has it: application/problem+json. `detail` says what was wrong with this
// request.
[[nodiscard]] HttpResponse problem(unsigned status, std::string detail);

}  // namespace mapgate::control
