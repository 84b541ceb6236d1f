// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/udp_upstream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace mapgate::dns {
namespace {

constexpr std::uint32_t kQueriesPerSocket = 2048;
constexpr std::chrono::seconds kSocketLifetime{30};
constexpr std::chrono::seconds kSweepInterval{1};
constexpr int kReceiveBuffer = 1 << 20;
constexpr int kBatchesPerTurn = 8;

}  // namespace

class UdpUpstream::Socket : public SharedSocket {
 public:
  Socket(UdpUpstream& upstream, WorkloadId workload, const Endpoint& resolver_endpoint, int fd)
      : SharedSocket(upstream.shares_, workload),
        pending(upstream.random_, upstream.counters_),
        resolver(resolver_endpoint),
        opened(TimePoint::clock::now()),
        upstream_(upstream),
        descriptor_(upstream.io_, fd, [this] { receive(); }),
        sender_(upstream.batches_, fd) {
    descriptor_.want_read();
  }

  [[nodiscard]] bool idle() const override { return pending.empty(); }
  void close() override { upstream_.close(*this); }

  void send(Exchange& exchange) {
    ++used;
    note_use();
    sender_.send(pending.add(exchange), std::nullopt, nullptr);
  }
  [[nodiscard]] bool worn() const { return used >= kQueriesPerSocket || pending.full(); }

  PendingQueries pending;
  const Endpoint resolver;
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
                         SocketShares& shares, FlowSource& flows, RandomSource& random,
                         DatagramReceiver& receiver, SendBatches& batches, Deadlines& deadlines,
                         UpstreamCounters& counters)
    : io_(io),
      network_(std::move(network)),
      shares_(shares),
      flows_(flows),
      random_(random),
      receiver_(receiver),
      batches_(batches),
      deadlines_(deadlines),
      counters_(counters),
      sweep_alarm_(io, [this] { sweep(); }) {}

UdpUpstream::~UdpUpstream() = default;

void UdpUpstream::start(Exchange& exchange) {
  const std::expected<Socket*, ExchangeStatus> socket =
      choose(exchange.workload(), exchange.resolver());
  if (!socket) {
    exchange.finish(socket.error());
    return;
  }
  deadlines_.add(exchange);
  (*socket)->send(exchange);
}

void UdpUpstream::abandon() {
  for (auto& [resolver, sockets] : resolvers_)
    for (std::unique_ptr<Socket>& socket : sockets)
      if (socket) retired_.push_back(std::move(socket));
  resolvers_.clear();
  for (const auto& socket : retired_) socket->pending.fail_all(ExchangeStatus::kAbandoned);
  retired_.clear();
}

std::expected<UdpUpstream::Socket*, ExchangeStatus> UdpUpstream::choose(WorkloadId workload,
                                                                        const Endpoint& resolver) {
  if (!sweep_alarm_.is_set()) sweep_alarm_.set(TimePoint::clock::now() + kSweepInterval);
  const std::size_t place = random_.next16() % kSocketsPerResolver;
  if (const auto found = resolvers_.find(resolver); found != resolvers_.end()) {
    std::unique_ptr<Socket>& present = found->second[place];
    if (present && present->worn()) retire(present);
    if (present) return present.get();
  }
  if (shares_.make_room(workload)) {
    auto socket = open(workload, resolver);
    if (!socket) return std::unexpected(ExchangeStatus::kFailed);
    return (resolvers_[resolver][place] = std::move(socket)).get();
  }
  // Another of this resolver's is less random, but better than no answer.
  const auto found = resolvers_.find(resolver);
  if (found != resolvers_.end())
    for (const std::unique_ptr<Socket>& other : found->second)
      if (other && !other->worn()) return other.get();
  return std::unexpected(ExchangeStatus::kLimited);
}

void UdpUpstream::close(Socket& socket) {
  const auto is_it = [&](const std::unique_ptr<Socket>& other) { return other.get() == &socket; };
  socket.pending.fail_all(ExchangeStatus::kLimited);
  const auto found = resolvers_.find(socket.resolver);
  if (found != resolvers_.end()) {
    const auto in_use = std::ranges::find_if(found->second, is_it);
    if (in_use != found->second.end()) return in_use->reset();
  }
  std::erase_if(retired_, is_it);
}

std::unique_ptr<UdpUpstream::Socket> UdpUpstream::open(WorkloadId workload,
                                                       const Endpoint& resolver) {
  const SocketAddress address(resolver);
  const int fd = network_.open_socket(address.family(), SOCK_DGRAM);
  if (fd < 0) return nullptr;
  auto socket = std::make_unique<Socket>(*this, workload, resolver, fd);
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
