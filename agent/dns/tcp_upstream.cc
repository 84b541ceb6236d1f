// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/tcp_upstream.h"

#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/dns/socket_address.h"

namespace mapgate::dns {

TcpUpstream::TcpUpstream(boost::asio::io_context& io, sockets::NetworkNamespace network,
                         FlowSource& flows, RandomSource& random, Deadlines& deadlines,
                         UpstreamCounters& counters)
    : io_(io),
      network_(std::move(network)),
      flows_(flows),
      deadlines_(deadlines),
      pending_(random, counters) {}

TcpUpstream::~TcpUpstream() {
  drop_connection();
}

void TcpUpstream::start(Exchange& exchange) {
  if (abandoned_) {
    exchange.finish(ExchangeStatus::kAbandoned);
    return;
  }
  if (pending_.full() || (!stream_ && !connect(exchange.resolver()))) {
    exchange.finish(ExchangeStatus::kFailed);
    return;
  }
  deadlines_.add(exchange);
  stream_->send(pending_.add(exchange));
}

void TcpUpstream::abandon() {
  abandoned_ = true;
  drop_connection();
  pending_.fail_all(ExchangeStatus::kAbandoned);
}

bool TcpUpstream::connect(const Endpoint& resolver) {
  const SocketAddress address(resolver);
  const int fd = network_.open_socket(address.family(), SOCK_STREAM);
  if (fd < 0) return false;
  const int no_delay = 1;
  static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay));
  if (!flows_.mark_own_socket(fd) ||
      (::connect(fd, address.data(), address.size()) != 0 && errno != EINPROGRESS)) {
    ::close(fd);
    return false;
  }
  has_answered_ = false;
  stream_ = std::make_shared<TcpStream>(
      io_, fd, 65535,
      TcpStream::Callbacks{.on_message =
                               [this](MessageView message) {
                                 has_answered_ = true;
                                 pending_.deliver(message, TimePoint::clock::now());
                               },
                           .on_drained = [] {},
                           .on_end = [this](TcpStream::End) { on_lost(); }});
  stream_->set_reading(true);
  return true;
}

void TcpUpstream::on_lost() {
  const bool again = has_answered_;
  drop_connection();
  for (Exchange* exchange : pending_.take_all()) {
    if (again && exchange->take_retry()) {
      start(*exchange);
    } else {
      exchange->finish(ExchangeStatus::kFailed);
    }
  }
}

void TcpUpstream::drop_connection() {
  if (stream_) std::exchange(stream_, nullptr)->close();
}

}  // namespace mapgate::dns
