// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/event_loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace mapgate::dns {

// Handlers that are already queued when their object goes still run: they hold the state, and find
// it stopped.
struct Descriptor::State {
  State(boost::asio::io_context& io, int fd) : descriptor(io, fd) {}

  using Wait = boost::asio::posix::stream_descriptor::wait_type;
  static void wait(const std::shared_ptr<State>& state, Wait type, bool State::*waiting,
                   std::function<void()> State::*callback) {
    if (std::exchange((*state).*waiting, true)) return;
    state->descriptor.async_wait(
        type, [state, waiting, callback](const boost::system::error_code& error) {
          (*state).*waiting = false;
          if (!state->stopped && !error) ((*state).*callback)();
        });
  }

  boost::asio::posix::stream_descriptor descriptor;
  std::function<void()> on_readable;
  std::function<void()> on_writable;
  bool reading = false;
  bool writing = false;
  bool stopped = false;
};

Descriptor::Descriptor(boost::asio::io_context& io, int fd, std::function<void()> on_readable,
                       std::function<void()> on_writable)
    : state_(std::make_shared<State>(io, fd)) {
  state_->on_readable = std::move(on_readable);
  state_->on_writable = std::move(on_writable);
}

Descriptor::~Descriptor() {
  state_->stopped = true;
  boost::system::error_code ignored;
  state_->descriptor.close(ignored);
}

int Descriptor::fd() const {
  return state_->descriptor.native_handle();
}

void Descriptor::want_read() {
  State::wait(state_, State::Wait::wait_read, &State::reading, &State::on_readable);
}

void Descriptor::want_write() {
  State::wait(state_, State::Wait::wait_write, &State::writing, &State::on_writable);
}

struct Alarm::State {
  explicit State(boost::asio::io_context& io) : timer(io) {}

  boost::asio::steady_timer timer;
  std::function<void()> on_time;
  // Counts the settings: a handler of an earlier one does nothing.
  std::uint64_t setting = 0;
  bool set = false;
};

Alarm::Alarm(boost::asio::io_context& io, std::function<void()> on_time)
    : state_(std::make_shared<State>(io)) {
  state_->on_time = std::move(on_time);
}

Alarm::~Alarm() {
  ++state_->setting;
  state_->timer.cancel();
}

void Alarm::set(TimePoint when) {
  state_->set = true;
  state_->timer.expires_at(when);
  state_->timer.async_wait([state = state_, setting = ++state_->setting](const auto&) {
    if (setting != state->setting) return;
    state->set = false;
    state->on_time();
  });
}

bool Alarm::is_set() const {
  return state_->set;
}

struct Deferred::State {
  explicit State(boost::asio::io_context& context) : io(context) {}

  boost::asio::io_context& io;
  std::function<void()> callback;
  bool requested = false;
  bool stopped = false;
};

Deferred::Deferred(boost::asio::io_context& io, std::function<void()> callback)
    : state_(std::make_shared<State>(io)) {
  state_->callback = std::move(callback);
}

Deferred::~Deferred() {
  state_->stopped = true;
}

void Deferred::request() {
  if (std::exchange(state_->requested, true)) return;
  boost::asio::post(state_->io, [state = state_] {
    state->requested = false;
    if (!state->stopped) state->callback();
  });
}

}  // namespace mapgate::dns
