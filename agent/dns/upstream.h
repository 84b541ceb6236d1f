// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/intrusive/list.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "agent/dns/event_loop.h"
#include "agent/dns/flow_source.h"
#include "agent/dns/message.h"
#include "agent/dns/random_source.h"

namespace mapgate::dns {

enum class ExchangeStatus : std::uint8_t {
  kAnswered,
  kTimedOut,
  kFailed,     // no socket, or the resolver cannot be reached
  kLimited,    // the workload has used up its share of sockets
  kAbandoned,  // the client has gone
};

struct UpstreamCounters {
  // Answers that were dropped:
  std::uint64_t unmatched = 0;       // no query has their id
  std::uint64_t wrong_question = 0;  // the query of their id asked for something else
  std::uint64_t malformed = 0;       // they cannot be read
};

class PendingQueries;
class Deadlines;
class Exchange;

// What forwards queries to one kind of resolver connection.
class Upstream {
 public:
  // Takes the query on, or finishes it at once with kFailed or kLimited.
  virtual void start(Exchange& exchange) = 0;

 protected:
  ~Upstream() = default;
};

using ExchangeHook =
    boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;

// One query at a resolver: `co_await` sends it and waits for the answer. The query, whose id does
// not matter, and the question outlive it.
class Exchange : public ExchangeHook {
 public:
  Exchange(Upstream& upstream, const Flow& flow, MessageView query, const Question& question)
      : upstream_(upstream), flow_(flow), query_(query), question_(question) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> session) {
    upstream_.start(*this);
    if (finished_) return false;
    session_ = session;
    return true;
  }
  ExchangeStatus await_resume() const { return status_; }

  // With kAnswered: the answer with the id that the query had at the resolver, its addresses, and
  // when it came.
  [[nodiscard]] Message& answer() { return answer_; }
  [[nodiscard]] const std::vector<LearnedAddress>& addresses() const { return addresses_; }
  [[nodiscard]] TimePoint answered() const { return answered_; }

  // For upstreams.
  [[nodiscard]] WorkloadId workload() const { return flow_.workload; }
  [[nodiscard]] const Endpoint& resolver() const { return flow_.resolver; }
  [[nodiscard]] MessageView query() const { return query_; }
  // Ends the wait and runs the session on. The exchange is gone when this returns.
  void finish(ExchangeStatus status);
  // True once: a query that a closing connection lost may be sent again.
  [[nodiscard]] bool take_retry() { return std::exchange(may_retry_, false); }

 private:
  friend class PendingQueries;
  friend class Deadlines;

  Upstream& upstream_;
  const Flow flow_;
  const MessageView query_;
  const Question& question_;
  std::coroutine_handle<> session_;
  PendingQueries* pending_ = nullptr;  // where it waits, under this id
  std::uint16_t id_ = 0;
  bool may_retry_ = true;
  bool finished_ = false;
  ExchangeStatus status_ = ExchangeStatus::kFailed;
  TimePoint deadline_{};
  TimePoint answered_{};
  Message answer_;
  std::vector<LearnedAddress> addresses_;
};

// Ends exchanges that last too long. All last equally long, so a list in order of arrival is
// enough.
class Deadlines {
 public:
  Deadlines(boost::asio::io_context& io, std::chrono::milliseconds timeout)
      : timeout_(timeout), alarm_(io, [this] { expire(); }) {}

  void add(Exchange& exchange);

 private:
  void expire();

  std::chrono::milliseconds timeout_;
  boost::intrusive::list<Exchange, boost::intrusive::constant_time_size<false>> waiting_;
  Alarm alarm_;
};

// The queries that one socket has sent and that have no answer yet, each under a random id.
class PendingQueries {
 public:
  // So that an id is found fast, and guessing one does not become easier with the load.
  static constexpr std::size_t kMax = 4096;

  PendingQueries(RandomSource& random, UpstreamCounters& counters)
      : random_(random), counters_(counters) {}
  ~PendingQueries() { fail_all(ExchangeStatus::kFailed); }
  PendingQueries(const PendingQueries&) = delete;
  PendingQueries& operator=(const PendingQueries&) = delete;

  [[nodiscard]] bool full() const { return by_id_.size() >= kMax; }
  [[nodiscard]] bool empty() const { return by_id_.empty(); }

  // Takes the exchange in, which is not full(). Returns the query with its id for the resolver.
  [[nodiscard]] Message add(Exchange& exchange);
  // Finishes the exchange that this message answers; drops and counts any other message.
  void deliver(MessageView answer, TimePoint now);
  void fail_all(ExchangeStatus status);
  // Takes all out, unfinished.
  [[nodiscard]] std::vector<Exchange*> take_all();

 private:
  friend class Exchange;
  void remove(const Exchange& exchange) { by_id_.erase(exchange.id_); }

  RandomSource& random_;
  UpstreamCounters& counters_;
  boost::unordered_flat_map<std::uint16_t, Exchange*> by_id_;
};

}  // namespace mapgate::dns
