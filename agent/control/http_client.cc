// SPDX-License-Identifier: Apache-2.0
#include "agent/control/http_client.h"

#include <limits>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace mapgate::control {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Stream = beast::basic_stream<asio::local::stream_protocol>;

}  // namespace

std::expected<HttpResponse, std::string> http_request(const std::filesystem::path& socket,
                                                      const std::string& method,
                                                      const std::string& target,
                                                      std::chrono::milliseconds timeout) {
  asio::io_context loop;
  Stream stream(loop);
  beast::error_code error;
  stream.expires_after(timeout);
  if (stream.socket().connect(asio::local::stream_protocol::endpoint(socket.native()), error)) {
    return std::unexpected(error.message());
  }
  http::request<http::empty_body> request;
  request.method_string(method);
  request.target(target);
  request.version(11);
  request.set(http::field::host, "localhost");
  request.prepare_payload();
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());
  // Asynchronous only because the timeout works on nothing else.
  http::async_write(stream, request, [&](const beast::error_code& write_error, std::size_t) {
    error = write_error;
    if (error) return;
    http::async_read(stream, buffer, parser,
                     [&](const beast::error_code& read_error, std::size_t) { error = read_error; });
  });
  loop.run();
  if (error) return std::unexpected(error.message());
  auto message = parser.release();
  HttpResponse response{message.result_int(),
                        std::string(message[http::field::content_type]),
                        std::move(message.body()),
                        {}};
  return response;
}

}  // namespace mapgate::control
