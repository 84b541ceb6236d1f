// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "agent/dns/event_loop.h"
#include "agent/dns/message.h"

namespace mapgate::dns {

// DNS messages over a TCP socket: each has its length in two bytes before it (RFC 1035 4.2.2).
// Callbacks may close the stream and let go of it.
class TcpStream : public std::enable_shared_from_this<TcpStream> {
 public:
  enum class End : std::uint8_t {
    kFinished,   // the peer sends no more, but may read
    kBroken,     // the connection failed
    kOversized,  // a message is larger than it may be
  };
  struct Callbacks {
    std::function<void(MessageView)> on_message;  // the view is valid during the call
    std::function<void()> on_drained;             // unsent() has come down to 0
    std::function<void(End)> on_end;              // once; no message follows
  };

  // Takes a non-blocking socket over that is connected or connecting.
  TcpStream(boost::asio::io_context& io, int fd, std::size_t max_message, Callbacks callbacks);
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // Messages are handed out while reading is on; at first it is off.
  void set_reading(bool reading);
  // At most 65535 bytes.
  void send(MessageView message);
  // What the kernel has not taken yet, in bytes.
  [[nodiscard]] std::size_t unsent() const { return output_.size() - sent_; }
  // Nothing is called back from here on.
  void close();

 private:
  void on_readable();
  void on_writable();
  void receive();
  void take_messages();
  void flush();
  void end(End reason);

  const std::size_t max_message_;
  Callbacks callbacks_;
  std::vector<std::uint8_t> input_;
  std::vector<std::uint8_t> output_;
  std::size_t sent_ = 0;  // of output_
  bool reading_ = false;
  bool taking_ = false;  // take_messages() runs
  bool ended_ = false;
  bool broken_ = false;
  bool closed_ = false;
  std::unique_ptr<Descriptor> descriptor_;  // until it is closed
};

}  // namespace mapgate::dns
