// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/tcp_client.h"

#include <utility>

namespace mapgate::dns {
namespace {

constexpr std::size_t kMaxUnsent = 256 * 1024;

}  // namespace

TcpClient::TcpClient(boost::asio::io_context& io, int fd, const Flow& flow,
                     const TcpClientLimits& limits, std::unique_ptr<TcpUpstream> upstream,
                     Callbacks callbacks)
    : flow_(flow),
      limits_(limits),
      callbacks_(std::move(callbacks)),
      upstream_(std::move(upstream)),
      stream_(std::make_shared<TcpStream>(
          io, fd, limits.max_query_size,
          TcpStream::Callbacks{.on_message =
                                   [this](MessageView query) {
                                     last_used_ = TimePoint::clock::now();
                                     callbacks_.on_query(shared_from_this(), query);
                                   },
                               .on_drained = [this] { update(); },
                               .on_end = [this](TcpStream::End reason) { on_end(reason); }})),
      idle_alarm_(io, [this] { on_idle_alarm(); }),
      last_used_(TimePoint::clock::now()) {}

void TcpClient::start() {
  idle_alarm_.set(last_used_ + limits_.idle_timeout);
  stream_->set_reading(true);
}

void TcpClient::stop() {
  closed_ = true;
  stream_->close();
}

void TcpClient::send(Message reply, SendWaiter* waiter) {
  std::optional<TimePoint> sent;
  if (!closed_) {
    stream_->send(reply);
    sent = last_used_ = TimePoint::clock::now();
  }
  if (waiter != nullptr) waiter->on_sent(sent);
}

void TcpClient::session_started() {
  ++in_work_;
  update();
}

void TcpClient::session_ended() {
  --in_work_;
  update();
}

void TcpClient::on_end(TcpStream::End reason) {
  if (reason == TcpStream::End::kOversized) callbacks_.on_oversized();
  if (reason == TcpStream::End::kFinished) {
    finished_ = true;
    update();
  } else {
    close();
  }
}

void TcpClient::on_idle_alarm() {
  const TimePoint now = TimePoint::clock::now();
  if (in_work_ == 0 && now - last_used_ >= limits_.idle_timeout) {
    close();
  } else {
    idle_alarm_.set((in_work_ > 0 ? now : last_used_) + limits_.idle_timeout);
  }
}

void TcpClient::update() {
  if (closed_) return;
  if (finished_ && in_work_ == 0 && stream_->unsent() == 0) {
    close();
  } else {
    stream_->set_reading(in_work_ < limits_.max_pipelined && stream_->unsent() < kMaxUnsent);
  }
}

void TcpClient::close() {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  stream_->close();
  callbacks_.on_closed(*this);
  upstream_->abandon();
}

}  // namespace mapgate::dns
