// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/intrusive/list.hpp>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "agent/dns/answer_gate.h"
#include "agent/dns/datagrams.h"
#include "agent/dns/flow_source.h"
#include "agent/dns/upstream.h"

namespace mapgate::dns {

// The coroutine of one query. It is started by Sessions, and destroys itself at its end.
class Session {
 public:
  struct promise_type : boost::intrusive::list_base_hook<
                            boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
    Session get_return_object() {
      return Session(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    [[noreturn]] void unhandled_exception() { std::terminate(); }
  };

 private:
  friend class Sessions;
  explicit Session(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// The sessions that have not ended.
class Sessions {
 public:
  Sessions() = default;
  ~Sessions() { destroy_all(); }
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  void start(Session session) {
    running_.push_back(session.handle_.promise());
    session.handle_.resume();
  }
  void destroy_all() {
    while (!running_.empty())
      std::coroutine_handle<Session::promise_type>::from_promise(running_.front()).destroy();
  }

 private:
  boost::intrusive::list<Session::promise_type, boost::intrusive::constant_time_size<false>>
      running_;
};

// Where a query came from.
class Client {
 public:
  virtual ~Client() = default;
  // Who asks, and whom; empty if the client was not steered here.
  [[nodiscard]] virtual std::optional<Flow> flow() = 0;
  [[nodiscard]] virtual Upstream& upstream() = 0;
  // The waiter, if there is one, hears before send() returns or later.
  virtual void send(Message reply, SendWaiter* waiter) = 0;
  virtual void session_started() {}
  virtual void session_ended() {}
};

// `co_await` sends a reply; gives when it left, or nothing if that failed.
class Send final : SendWaiter {
 public:
  Send(Client& client, Message reply) : client_(client), reply_(std::move(reply)) {}

  [[nodiscard]] bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> session) {
    client_.send(std::move(reply_), this);
    if (done_) return false;
    session_ = session;
    return true;
  }
  [[nodiscard]] std::optional<TimePoint> await_resume() const { return sent_; }

 private:
  void on_sent(std::optional<TimePoint> sent) override {
    sent_ = sent;
    done_ = true;
    if (session_) session_.resume();
  }

  Client& client_;
  Message reply_;
  std::coroutine_handle<> session_;
  std::optional<TimePoint> sent_;
  bool done_ = false;
};

// `co_await` holds until the gate says what becomes of the answer.
class Hold {
 public:
  Hold(AnswerGate& gate, const HoldRequest& request) : gate_(gate), request_(request) {}
  ~Hold() { *self_ = nullptr; }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  [[nodiscard]] bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> session) {
    gate_.hold(request_, [self = self_](const HoldResult& result) {
      if (Hold* hold = std::exchange(*self, nullptr)) hold->finish(result);
    });
    if (result_) return false;
    session_ = session;
    return true;
  }
  [[nodiscard]] HoldResult await_resume() const { return *result_; }

 private:
  void finish(const HoldResult& result) {
    result_ = result;
    if (session_) session_.resume();
  }

  AnswerGate& gate_;
  const HoldRequest request_;
  std::coroutine_handle<> session_;
  std::optional<HoldResult> result_;
  // The callback may outlive the session: it finds null then.
  std::shared_ptr<Hold*> self_ = std::make_shared<Hold*>(this);
};

}  // namespace mapgate::dns
