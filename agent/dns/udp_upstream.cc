// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/udp_upstream.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace mapgate::dns {
namespace {

constexpr std::uint32_t kQueriesPerSocket = 2048;
constexpr std::chrono::seconds kSocketLifetime{30};
constexpr std::chrono::seconds kSweepInterval{1};
// Bounds the resolvers that clients make up, and the file descriptors.
constexpr std::size_t kMaxSockets = 512;
constexpr int kReceiveBuffer = 1 << 20;
constexpr int kBatchesPerTurn = 8;

}  // namespace

class UdpUpstream::Socket {
 public:
  Socket(UdpUpstream& upstream, int fd)
      : pending(upstream.random_, upstream.counters_),
        opened(TimePoint::clock::now()),
        upstream_(upstream),
        descriptor_(upstream.io_, fd, [this] { receive(); }),
        sender_(upstream.batches_, fd) {
    ++upstream_.open_sockets_;
    descriptor_.want_read();
  }
  ~Socket() { --upstream_.open_sockets_; }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(Exchange& exchange) {
    ++used;
    sender_.send(pending.add(exchange), std::nullopt, nullptr);
  }
  [[nodiscard]] bool worn() const { return used >= kQueriesPerSocket || pending.full(); }

  PendingQueries pending;
  const TimePoint opened;
  std::uint32_t used = 0;

 private:
  void receive() {
    const SendBatches::Batch batch(upstream_.batches_);
    for (int turn = 0; turn < kBatchesPerTurn; ++turn) {
      const int count = upstream_.receiver_.receive(descriptor_.fd());
      if (count == -ECONNREFUSED) pending.fail_all(ExchangeStatus::kFailed);
      if (count == -EAGAIN) break;
      const TimePoint now = TimePoint::clock::now();
      for (int i = 0; i < count; ++i)
        pending.deliver(upstream_.receiver_.bytes(static_cast<std::size_t>(i)), now);
      // Fewer than fit: the queue was empty, and whatever comes now makes the socket ready again.
      if (count >= 0 && static_cast<std::size_t>(count) < DatagramReceiver::kBatch) break;
    }
    descriptor_.want_read();
  }

  UdpUpstream& upstream_;
  Descriptor descriptor_;
  DatagramSender sender_;
};

UdpUpstream::UdpUpstream(boost::asio::io_context& io, sockets::NetworkNamespace network,
                         FlowSource& flows, RandomSource& random, DatagramReceiver& receiver,
                         SendBatches& batches, Deadlines& deadlines, UpstreamCounters& counters)
    : io_(io),
      network_(std::move(network)),
      flows_(flows),
      random_(random),
      receiver_(receiver),
      batches_(batches),
      deadlines_(deadlines),
      counters_(counters),
      sweep_alarm_(io, [this] { sweep(); }) {}

UdpUpstream::~UdpUpstream() = default;

void UdpUpstream::start(Exchange& exchange) {
  Socket* socket = choose(exchange.resolver());
  if (socket == nullptr) {
    exchange.finish(ExchangeStatus::kFailed);
    return;
  }
  deadlines_.add(exchange);
  socket->send(exchange);
}

void UdpUpstream::abandon() {
  for (auto& [resolver, sockets] : resolvers_)
    for (std::unique_ptr<Socket>& socket : sockets)
      if (socket) retired_.push_back(std::move(socket));
  resolvers_.clear();
  for (const auto& socket : retired_) socket->pending.fail_all(ExchangeStatus::kAbandoned);
  retired_.clear();
}

UdpUpstream::Socket* UdpUpstream::choose(const Endpoint& resolver) {
  if (!resolvers_.contains(resolver) && open_sockets_ >= kMaxSockets) return nullptr;
  std::unique_ptr<Socket>& socket = resolvers_[resolver][random_.next16() % kSocketsPerResolver];
  if (socket && socket->worn()) retire(socket);
  if (!socket && open_sockets_ < kMaxSockets) socket = open(resolver);
  if (!sweep_alarm_.is_set()) sweep_alarm_.set(TimePoint::clock::now() + kSweepInterval);
  return socket.get();
}

std::unique_ptr<UdpUpstream::Socket> UdpUpstream::open(const Endpoint& resolver) {
  const SocketAddress address(resolver);
  const int fd = network_.open_socket(address.family(), SOCK_DGRAM);
  if (fd < 0) return nullptr;
  auto socket = std::make_unique<Socket>(*this, fd);
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer));
  if (!flows_.mark_own_socket(fd)) return nullptr;
  if (::connect(fd, address.data(), address.size()) != 0) return nullptr;
  return socket;
}

void UdpUpstream::retire(std::unique_ptr<Socket>& socket) {
  if (socket->pending.empty()) {
    socket.reset();
  } else {
    retired_.push_back(std::move(socket));
  }
}

void UdpUpstream::sweep() {
  std::erase_if(retired_, [](const auto& socket) { return socket->pending.empty(); });
  const TimePoint oldest = TimePoint::clock::now() - kSocketLifetime;
  boost::unordered::erase_if(resolvers_, [&](auto& resolver) {
    bool used = false;
    for (std::unique_ptr<Socket>& socket : resolver.second) {
      if (socket && socket->opened < oldest) retire(socket);
      used = used || socket != nullptr;
    }
    return !used;
  });
  if (!resolvers_.empty() || !retired_.empty())
    sweep_alarm_.set(TimePoint::clock::now() + kSweepInterval);
}

}  // namespace mapgate::dns
