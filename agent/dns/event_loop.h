// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "agent/dns/answer_gate.h"

namespace boost::asio {
class io_context;
}

// What the proxy needs of Asio, so that only event_loop.cc sees its headers. Callbacks run in the
// thread of the io_context, and never after the object that has them is destroyed; they may destroy
// it.
namespace mapgate::dns {

// Owns a non-blocking file descriptor and tells when it is ready.
class Descriptor {
 public:
  Descriptor(boost::asio::io_context& io, int fd, std::function<void()> on_readable,
             std::function<void()> on_writable = {});
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int fd() const;
  // Each asks for one call. Asking again before it came changes nothing.
  void want_read();
  void want_write();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Calls back at a time. set() replaces the time that was set before.
class Alarm {
 public:
  Alarm(boost::asio::io_context& io, std::function<void()> on_time);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void set(TimePoint when);
  [[nodiscard]] bool is_set() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Calls back once in the loop's next turn, however often it was asked meanwhile.
class Deferred {
 public:
  Deferred(boost::asio::io_context& io, std::function<void()> callback);
  ~Deferred();
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

  void request();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mapgate::dns
