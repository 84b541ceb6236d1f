// SPDX-License-Identifier: Apache-2.0
#include "agent/control/http_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <system_error>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/intrusive/list.hpp>
#include <nlohmann/json.hpp>

namespace mapgate::control {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Protocol = asio::local::stream_protocol;
using Stream = beast::basic_stream<Protocol>;
using Response = http::response<http::string_body>;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

struct Connection
    : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
  explicit Connection(Protocol::socket socket) : stream(std::move(socket)) {}
  Stream stream;
};
using Connections = boost::intrusive::list<Connection, boost::intrusive::constant_time_size<false>>;

HttpResponse problem_of(const beast::error_code& error) {
  if (error == http::error::header_limit) return problem(431, "the header is too big");
  if (error == http::error::body_limit) return problem(413, "the body is too big");
  return problem(400, "malformed HTTP: " + error.message());
}

// The request, or how it is refused.
std::variant<HttpRequest, HttpResponse> check(http::request<http::string_body>&& message) {
  if (message.count(http::field::host) != 1) return problem(400, "there must be one Host header");
  const auto target = message.target();
  auto parsed = HttpTarget::parse({target.data(), target.size()});
  if (!parsed) return problem(400, "malformed request target");
  return HttpRequest{std::string(message.method_string()), std::move(*parsed),
                     std::move(message.body())};
}

Response to_message(HttpResponse&& response, unsigned version, bool keep_alive) {
  Response message(static_cast<http::status>(response.status), version, std::move(response.body));
  message.set(http::field::content_type, response.content_type);
  message.set(http::field::cache_control, "no-store");
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
  message.prepare_payload();
  return message;
}

// Returns when the other side has closed the connection; closing its writing half only is not
// enough.
asio::awaitable<void> hang_up(Protocol::socket& socket) {
  co_await socket.async_wait(Protocol::socket::wait_error, kTuple);
}

}  // namespace

HttpResponse problem(unsigned status, std::string detail) {
  const nlohmann::ordered_json body = {
      {"type", "about:blank"},
      {"title", http::obsolete_reason(static_cast<http::status>(status))},
      {"status", status},
      {"detail", std::move(detail)}};
  // What a client sent may be no UTF-8: it is shown, not thrown at.
  return {status,
          "application/problem+json",
          body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
          {}};
}

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(const asio::any_io_executor& executor, std::filesystem::path path, HttpServerOptions options,
       Handler handler)
      : acceptor_(executor),
        pause_(executor),
        path_(std::move(path)),
        options_(options),
        handler_(std::move(handler)) {}

  [[nodiscard]] std::expected<void, std::string> open();
  void start() { spawn(accept_connections(shared_from_this())); }
  void close();
  [[nodiscard]] std::size_t open_connections() const { return connections_.size(); }

 private:
  using Self = std::shared_ptr<Impl>;

  void spawn(asio::awaitable<void> coroutine) {
    asio::co_spawn(acceptor_.get_executor(), std::move(coroutine), asio::detached);
  }
  asio::awaitable<void> accept_connections(Self self);
  asio::awaitable<void> serve(Self self, Protocol::socket socket);
  asio::awaitable<bool> serve_request(Connection& connection, beast::flat_buffer& buffer);
  asio::awaitable<bool> respond(Connection& connection, HttpResponse response, unsigned version,
                                bool keep_alive);

  Protocol::acceptor acceptor_;
  asio::steady_timer pause_;
  const std::filesystem::path path_;
  const HttpServerOptions options_;
  Handler handler_;
  Connections connections_;
  bool bound_ = false;
};

std::expected<void, std::string> HttpServer::Impl::open() {
  const auto fail = [this](const std::string& what, const std::error_code& error) {
    return std::unexpected(what + " " + path_.string() + ": " + error.message());
  };
  if (path_.native().size() >= sizeof(sockaddr_un::sun_path)) {
    return std::unexpected("the path of the control socket is too long: " + path_.string());
  }
  const Protocol::endpoint endpoint(path_.native());
  beast::error_code error;
  Protocol::socket probe(acceptor_.get_executor());
  if (!probe.connect(endpoint, error)) {
    return std::unexpected("another process serves the control socket " + path_.string());
  }
  // Left behind by a process that was killed. A file that is no socket refuses connections as well.
  if (error == asio::error::connection_refused && std::filesystem::is_socket(path_))
    unlink(path_.c_str());
  acceptor_.open(endpoint.protocol(), error);
  if (error) return fail("cannot make the control socket", error);
  // The socket's mode when it appears is that of its inode now: at no time is it open to others.
  if (fchmod(acceptor_.native_handle(), 0660) != 0)
    return fail("chmod", {errno, std::system_category()});
  if (acceptor_.bind(endpoint, error)) return fail("cannot bind the control socket", error);
  bound_ = true;
  if (chmod(path_.c_str(), 0660) != 0) return fail("chmod", {errno, std::system_category()});
  if (acceptor_.listen(asio::socket_base::max_listen_connections, error))
    return fail("cannot listen on", error);
  return {};
}

void HttpServer::Impl::close() {
  beast::error_code ignored;
  if (bound_) unlink(path_.c_str());
  acceptor_.close(ignored);
  pause_.cancel();
  for (Connection& connection : connections_) connection.stream.socket().close(ignored);
}

// `self` keeps this object while the coroutine runs.
asio::awaitable<void> HttpServer::Impl::accept_connections(Self self) {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kTuple);
    if (!error) {
      spawn(serve(self, std::move(socket)));
      continue;
    }
    if (!acceptor_.is_open()) break;
    // Out of file descriptors, most likely: let some connections end.
    pause_.expires_after(kAcceptPause);
    co_await pause_.async_wait(kTuple);
  }
}

asio::awaitable<void> HttpServer::Impl::serve(Self /*self*/, Protocol::socket socket) {
  Connection connection(std::move(socket));
  if (connections_.size() >= options_.max_connections) {
    co_await respond(connection, problem(503, "too many connections"), 11, false);
    co_return;
  }
  connections_.push_back(connection);
  beast::flat_buffer buffer(options_.max_header_bytes + options_.max_body_bytes);
  while (co_await serve_request(connection, buffer)) {
  }
}

// Whether the connection stays open.
asio::awaitable<bool> HttpServer::Impl::serve_request(Connection& connection,
                                                      beast::flat_buffer& buffer) {
  using namespace asio::experimental::awaitable_operators;
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  connection.stream.expires_after(options_.idle_timeout);
  const auto [error, size] = co_await http::async_read(connection.stream, buffer, parser, kTuple);
  if (error) {
    const bool can_answer =
        error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message;
    if (can_answer) co_await respond(connection, problem_of(error), 11, false);
    co_return false;
  }
  connection.stream.expires_never();
  const unsigned version = parser.get().version();
  const bool keep_alive = parser.get().keep_alive();
  auto request = check(parser.release());
  if (auto* refused = std::get_if<HttpResponse>(&request)) {
    co_return co_await respond(connection, std::move(*refused), version, keep_alive);
  }
  auto outcome = co_await (handler_(std::move(std::get<HttpRequest>(request))) ||
                           hang_up(connection.stream.socket()));
  auto* response = std::get_if<HttpResponse>(&outcome);
  if (response == nullptr) co_return false;
  co_return co_await respond(connection, std::move(*response), version, keep_alive);
}

asio::awaitable<bool> HttpServer::Impl::respond(Connection& connection, HttpResponse response,
                                                unsigned version, bool keep_alive) {
  Response message = to_message(std::move(response), version, keep_alive);
  connection.stream.expires_after(options_.idle_timeout);
  const auto [error, size] = co_await http::async_write(connection.stream, message, kTuple);
  co_return !error && message.keep_alive();
}

std::expected<std::unique_ptr<HttpServer>, std::string> HttpServer::listen(
    const asio::any_io_executor& executor, const std::filesystem::path& socket,
    HttpServerOptions options, Handler handler) {
  auto impl = std::make_shared<Impl>(executor, socket, options, std::move(handler));
  // From here on the destructor closes what is half open.
  std::unique_ptr<HttpServer> server(new HttpServer(impl));
  if (auto opened = impl->open(); !opened) return std::unexpected(opened.error());
  impl->start();
  return server;
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  impl_->close();
}
std::size_t HttpServer::open_connections() const {
  return impl_->open_connections();
}

}  // namespace mapgate::control
