// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "agent/dns/session.h"
#include "agent/dns/tcp_stream.h"
#include "agent/dns/tcp_upstream.h"

namespace mapgate::dns {

struct TcpClientLimits {
  std::chrono::milliseconds idle_timeout{};
  std::size_t max_query_size = 0;
  std::size_t max_pipelined = 0;
};

// One TCP connection of a client. It is read from while few of its queries are in work and it takes
// its answers; it is closed when it has been idle for long, or the client is done and has all of
// its answers.
class TcpClient final : public Client, public std::enable_shared_from_this<TcpClient> {
 public:
  struct Callbacks {
    std::function<void(std::shared_ptr<TcpClient>, MessageView)> on_query;
    std::function<void()> on_oversized;
    std::function<void(TcpClient&)> on_closed;  // once
  };

  TcpClient(boost::asio::io_context& io, int fd, const Flow& flow, const TcpClientLimits& limits,
            std::unique_ptr<TcpUpstream> upstream, Callbacks callbacks);

  void start();
  void close();
  // Closes without a word to anybody, for the end of the proxy.
  void stop();

  [[nodiscard]] WorkloadId workload() const { return flow_.workload; }
  [[nodiscard]] std::optional<Flow> flow() override { return flow_; }
  [[nodiscard]] Upstream& upstream() override { return *upstream_; }
  void send(Message reply, SendWaiter* waiter) override;
  void session_started() override;
  void session_ended() override;

 private:
  void on_end(TcpStream::End reason);
  void on_idle_alarm();
  // Reads on, stops reading, or closes, as the state wants it.
  void update();

  const Flow flow_;
  const TcpClientLimits limits_;
  Callbacks callbacks_;
  std::unique_ptr<TcpUpstream> upstream_;
  std::shared_ptr<TcpStream> stream_;
  Alarm idle_alarm_;
  TimePoint last_used_;
  std::size_t in_work_ = 0;
  bool finished_ = false;  // the client sends no more
  bool closed_ = false;
};

}  // namespace mapgate::dns
