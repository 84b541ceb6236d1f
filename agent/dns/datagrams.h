// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <boost/intrusive/list.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "agent/dns/event_loop.h"
#include "agent/dns/message.h"
#include "agent/dns/socket_address.h"

namespace mapgate::dns {

// Receives datagrams many at a time into buffers that all sockets share.
class DatagramReceiver {
 public:
  static constexpr std::size_t kBatch = 32;
  static constexpr std::size_t kMaxSize = 65535;

  DatagramReceiver();
  DatagramReceiver(const DatagramReceiver&) = delete;
  DatagramReceiver& operator=(const DatagramReceiver&) = delete;

  // How many came, up to kBatch; negative: -errno, -EAGAIN when there are none.
  [[nodiscard]] int receive(int socket);
  // The datagrams of the last receive().
  [[nodiscard]] MessageView bytes(std::size_t index) const;
  [[nodiscard]] const SocketAddress& source(std::size_t index) const { return sources_[index]; }

 private:
  std::vector<std::uint8_t> buffers_;
  std::array<SocketAddress, kBatch> sources_;
  std::array<iovec, kBatch> vectors_{};
  std::array<mmsghdr, kBatch> headers_{};
};

// Hears when a reply has left: `sent` is when the system call returned; empty if it failed.
class SendWaiter {
 public:
  virtual void on_sent(std::optional<TimePoint> sent) = 0;

 protected:
  ~SendWaiter() = default;
};

class SendBatches;

// The datagrams that one socket is to send. The socket outlives it.
class DatagramSender : public boost::intrusive::list_base_hook<
                           boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
 public:
  DatagramSender(SendBatches& batches, int socket) : batches_(&batches), socket_(socket) {}
  DatagramSender(const DatagramSender&) = delete;
  DatagramSender& operator=(const DatagramSender&) = delete;

  // Leaves with the batch. No destination: the socket is connected. The waiter, if there is one,
  // lives until it has heard.
  void send(Message message, const std::optional<SocketAddress>& to, SendWaiter* waiter);

 private:
  friend class SendBatches;
  struct Outgoing {
    Message message;
    std::optional<SocketAddress> to;
    SendWaiter* waiter = nullptr;
  };
  // Sends everything; returns how many the kernel did not take: they are lost, as datagrams may be.
  std::size_t flush();

  SendBatches* batches_;
  int socket_;
  std::vector<Outgoing> queue_;
};

// Sends what the handlers of one turn of the loop have queued with few system calls.
class SendBatches {
 public:
  explicit SendBatches(boost::asio::io_context& io);

  // While one of these lives, datagrams wait for its end.
  class Batch {
   public:
    explicit Batch(SendBatches& batches) : batches_(batches) { ++batches_.depth_; }
    ~Batch() {
      if (--batches_.depth_ == 0) batches_.flush();
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    SendBatches& batches_;
  };

  [[nodiscard]] std::uint64_t failures() const { return failures_; }

 private:
  friend class DatagramSender;
  void add(DatagramSender& sender);
  void flush();

  boost::intrusive::list<DatagramSender, boost::intrusive::constant_time_size<false>> waiting_;
  Deferred deferred_;
  unsigned depth_ = 0;
  std::uint64_t failures_ = 0;
};

}  // namespace mapgate::dns
