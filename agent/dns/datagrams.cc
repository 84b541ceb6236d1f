// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/datagrams.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace mapgate::dns {
namespace {

// On a connected socket an ICMP error that came for an earlier datagram fails the next call, once.
int send_some(int socket, mmsghdr* headers, unsigned count) {
  const int sent = ::sendmmsg(socket, headers, count, MSG_DONTWAIT);
  if (sent >= 0 || errno != ECONNREFUSED) return sent;
  return ::sendmmsg(socket, headers, count, MSG_DONTWAIT);
}

}  // namespace

DatagramReceiver::DatagramReceiver() : buffers_(kBatch * kMaxSize) {
  for (std::size_t i = 0; i < kBatch; ++i) {
    vectors_[i] = {buffers_.data() + i * kMaxSize, kMaxSize};
    headers_[i].msg_hdr.msg_iov = &vectors_[i];
    headers_[i].msg_hdr.msg_iovlen = 1;
    headers_[i].msg_hdr.msg_name = sources_[i].data();
  }
}

int DatagramReceiver::receive(int socket) {
  for (mmsghdr& header : headers_) header.msg_hdr.msg_namelen = SocketAddress::capacity();
  const int count = ::recvmmsg(socket, headers_.data(), kBatch, MSG_DONTWAIT, nullptr);
  return count < 0 ? -errno : count;
}

MessageView DatagramReceiver::bytes(std::size_t index) const {
  return {buffers_.data() + index * kMaxSize, headers_[index].msg_len};
}

void DatagramSender::send(Message message, const std::optional<SocketAddress>& to,
                          SendWaiter* waiter) {
  queue_.push_back({std::move(message), to, waiter});
  if (!is_linked()) batches_->add(*this);
}

std::size_t DatagramSender::flush() {
  constexpr std::size_t kBatch = 64;
  std::size_t failures = 0;
  std::vector<Outgoing> queue = std::exchange(queue_, {});
  const int socket = socket_;  // a waiter may end this sender
  std::array<mmsghdr, kBatch> headers{};
  std::array<iovec, kBatch> vectors{};
  for (std::size_t next = 0; next < queue.size();) {
    const std::size_t count = std::min(kBatch, queue.size() - next);
    for (std::size_t i = 0; i < count; ++i) {
      Outgoing& outgoing = queue[next + i];
      vectors[i] = {outgoing.message.data(), outgoing.message.size()};
      msghdr& header = headers[i].msg_hdr;
      header = {};
      header.msg_iov = &vectors[i];
      header.msg_iovlen = 1;
      if (!outgoing.to) continue;
      header.msg_name = outgoing.to->data();
      header.msg_namelen = outgoing.to->size();
    }
    const int sent = send_some(socket, headers.data(), static_cast<unsigned>(count));
    const std::optional<TimePoint> when =
        sent > 0 ? std::optional(TimePoint::clock::now()) : std::nullopt;
    const std::size_t done = sent > 0 ? static_cast<std::size_t>(sent) : 1;
    if (sent <= 0) ++failures;  // the first one; the next call goes on behind it
    for (std::size_t i = 0; i < done; ++i)
      if (SendWaiter* waiter = queue[next + i].waiter) waiter->on_sent(when);
    next += done;
  }
  return failures;
}

SendBatches::SendBatches(boost::asio::io_context& io) : deferred_(io, [this] { flush(); }) {}

void SendBatches::add(DatagramSender& sender) {
  waiting_.push_back(sender);
  if (depth_ == 0) deferred_.request();
}

void SendBatches::flush() {
  while (!waiting_.empty()) {
    DatagramSender& sender = waiting_.front();
    waiting_.pop_front();
    failures_ += sender.flush();
  }
}

}  // namespace mapgate::dns
