// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/control/http.h"
#include "agent/control/http_client.h"
#include "agent/control/http_server.h"

namespace mapgate::control {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;
namespace asio = boost::asio;

TEST(HttpTargetTest, PathAndQueryAreDecoded) {
  const auto target = HttpTarget::parse("/v1/entries?workload=a%20b&state=error&flag");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, "/v1/entries");
  EXPECT_EQ(target->query,
            (QueryParameters{{"workload", "a b"}, {"state", "error"}, {"flag", ""}}));
}

TEST(HttpTargetTest, WhatIsMalformedIsRefused) {
  for (const char* bad :
       {"", "*", "http://host/", "/%", "/%4", "/%zz", "/%00", "/?a=%x", "/?a=1&a=2", "/%-1"}) {
    EXPECT_FALSE(HttpTarget::parse(bad)) << bad;
  }
}

TEST(HttpTargetTest, WhatIsEncodedDecodesToTheSame) {
  const std::string text = "a&b=c%/ü ?";
  const auto target = HttpTarget::parse("/?x=" + percent_encode(text));
  ASSERT_TRUE(target);
  EXPECT_EQ(target->query.at("x"), text);
}

// A connected socket that says whatever it likes.
class RawClient {
 public:
  explicit RawClient(const std::filesystem::path& path)
      : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const timeval timeout{5, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }
  void send(const std::string& bytes) const {
    ASSERT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void shut_down_writing() const { shutdown(socket_, SHUT_WR); }
  // Everything until the server closes.
  [[nodiscard]] std::string read_all() const {
    std::string result;
    char buffer[4096];
    for (ssize_t size; (size = recv(socket_, buffer, sizeof buffer, 0)) > 0;) {
      result.append(buffer, static_cast<std::size_t>(size));
    }
    return result;
  }

 private:
  int socket_;
  bool connected_ = false;
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::temp_directory_path() /
        ("mapgate-http-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device()()));
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(directory_);
  }

  void start(HttpServerOptions options = {}) {
    auto server =
        HttpServer::listen(loop_.get_executor(), socket(), options,
                           [this](HttpRequest request) { return handle(std::move(request)); });
    ASSERT_TRUE(server) << server.error();
    server_ = std::move(*server);
    thread_ = std::thread([this] { loop_.run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] { server_.reset(); });
    thread_.join();
  }

  // /echo gives the request back, /wait never ends by itself.
  asio::awaitable<HttpResponse> handle(HttpRequest request) {
    if (request.target.path == "/wait") {
      asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::hours(1));
      const auto [error] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
      cancelled_.set_value(error == asio::error::operation_aborted);
    }
    HttpResponse response;
    response.body = request.method + " " + request.target.path + " " + request.body;
    co_return response;
  }

  [[nodiscard]] std::filesystem::path socket() const { return directory_ / "control.sock"; }
  [[nodiscard]] std::string exchange(const std::string& bytes) const {
    const RawClient client(socket());
    client.send(bytes);
    return client.read_all();
  }

  std::filesystem::path directory_;
  asio::io_context loop_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::promise<bool> cancelled_;
};

TEST_F(HttpServerTest, ARequestIsAnsweredByTheHandler) {
  start();
  const auto response = http_request(socket(), "GET", "/echo", milliseconds(5000));
  ASSERT_TRUE(response) << response.error();
  EXPECT_EQ(response->status, 200U);
  EXPECT_EQ(response->content_type, "application/json");
  EXPECT_EQ(response->body, "GET /echo ");
}

TEST_F(HttpServerTest, SeveralRequestsOfOneConnectionAreAnsweredInOrder) {
  start();
  const std::string responses = exchange(
      "POST /one HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nabGET /two HTTP/1.1\r\nHost: "
      "x\r\nConnection: "
      "close\r\n\r\n");
  EXPECT_THAT(responses, HasSubstr("POST /one ab"));
  EXPECT_THAT(responses, testing::EndsWith("GET /two "));
}

TEST_F(HttpServerTest, AMissingOrDoubleHostHeaderIsRefused) {
  start();
  const std::string missing = exchange("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(missing, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(missing, HasSubstr("application/problem+json"));
  EXPECT_THAT(exchange("GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpServerTest, WhatIsNotHttpIsRefused) {
  start();
  for (const char* bad :
       {"nonsense\r\n\r\n", "GET /echo\r\n\r\n", "GET /echo HTTP/1.1\r\nHost x\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
        "chunked\r\n\r\n"}) {
    EXPECT_THAT(exchange(bad), StartsWith("HTTP/1.1 400 ")) << bad;
  }
}

TEST_F(HttpServerTest, WhatIsTooBigIsRefused) {
  start({.max_header_bytes = 512, .max_body_bytes = 100});
  EXPECT_THAT(exchange("GET /echo HTTP/1.1\r\nHost: x\r\nX: " + std::string(600, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n" +
                       std::string(101, 'x')),
              StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, AClientThatGoesAwayCancelsItsHandler) {
  start();
  {
    const RawClient client(socket());
    client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    std::this_thread::sleep_for(
        milliseconds(50));  // until the handler waits; either order must work
  }
  auto cancelled = cancelled_.get_future();
  ASSERT_EQ(cancelled.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_TRUE(cancelled.get());
}

TEST_F(HttpServerTest, AClientThatClosesItsWritingHalfStillGetsItsAnswer) {
  start();
  const RawClient client(socket());
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  client.shut_down_writing();
  EXPECT_THAT(client.read_all(), testing::EndsWith("GET /echo "));
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosed) {
  start({.idle_timeout = std::chrono::seconds(1)});
  const RawClient client(socket());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client.read_all(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

TEST_F(HttpServerTest, OneConnectionTooManyIsToldSo) {
  start({.max_connections = 1});
  const RawClient first(socket());
  first.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(exchange(""), StartsWith("HTTP/1.1 503 "));
}

TEST_F(HttpServerTest, TheSocketIsForOwnerAndGroupOnly) {
  const mode_t before = umask(0);
  start();
  umask(before);
  struct stat status {};
  ASSERT_EQ(stat(socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0660U);
}

TEST_F(HttpServerTest, ASocketLeftBehindIsReplacedAndOneInUseIsNot) {
  {
    const int stale = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket().c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(stale, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    close(stale);
  }
  start();
  const auto second = HttpServer::listen(loop_.get_executor(), socket(), {},
                                         [this](HttpRequest r) { return handle(std::move(r)); });
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error(), HasSubstr("another process"));
  EXPECT_TRUE(http_request(socket(), "GET", "/echo", milliseconds(5000)))
      << "the first one must go on serving";
}

TEST_F(HttpServerTest, AFileThatIsNoSocketIsNotRemoved) {
  std::ofstream(socket()) << "precious";
  const auto server = HttpServer::listen(loop_.get_executor(), socket(), {},
                                         [this](HttpRequest r) { return handle(std::move(r)); });
  EXPECT_FALSE(server);
  std::string content;
  std::ifstream(socket()) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(HttpServerTest, ClosingRemovesTheSocketAndCancelsHandlers) {
  start();
  const RawClient client(socket());
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(50));
  stop();
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST(HttpClientTest, NobodyThereIsAnError) {
  EXPECT_FALSE(http_request("/nonexistent/socket", "GET", "/", milliseconds(1000)));
}

TEST(HttpProblemTest, WhatTheClientSentMayBeNoUtf8) {
  EXPECT_THAT(problem(400, "\xff").body, HasSubstr("\"status\":400"));
}

}  // namespace
}  // namespace mapgate::control
