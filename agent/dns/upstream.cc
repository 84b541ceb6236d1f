// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/upstream.h"

#include <utility>

namespace mapgate::dns {

Exchange::~Exchange() {
  if (pending_ != nullptr) pending_->remove(*this);
}

void Exchange::finish(ExchangeStatus status) {
  if (pending_ != nullptr) std::exchange(pending_, nullptr)->remove(*this);
  if (is_linked()) unlink();
  status_ = status;
  finished_ = true;
  if (session_) session_.resume();
}

void Deadlines::add(Exchange& exchange) {
  if (exchange.is_linked()) return;  // sent again: its first deadline holds
  exchange.deadline_ = TimePoint::clock::now() + timeout_;
  waiting_.push_back(exchange);
  if (!alarm_.is_set()) alarm_.set(exchange.deadline_);
}

void Deadlines::expire() {
  const TimePoint now = TimePoint::clock::now();
  while (!waiting_.empty() && waiting_.front().deadline_ <= now)
    waiting_.front().finish(ExchangeStatus::kTimedOut);
  if (!waiting_.empty()) alarm_.set(waiting_.front().deadline_);
}

Message PendingQueries::add(Exchange& exchange) {
  std::uint16_t id = random_.next16();
  while (by_id_.contains(id)) id = random_.next16();
  by_id_.emplace(id, &exchange);
  exchange.id_ = id;
  exchange.pending_ = this;
  Message message(exchange.query_.begin(), exchange.query_.end());
  set_message_id(message, id);
  return message;
}

void PendingQueries::deliver(MessageView answer, TimePoint now) {
  const auto found = answer.size() < kHeaderSize ? by_id_.end() : by_id_.find(message_id(answer));
  if (found == by_id_.end()) {
    ++counters_.unmatched;
    return;
  }
  if (!answers_query(answer, found->second->query_, found->second->question_)) {
    ++counters_.wrong_question;
    return;
  }
  std::optional<std::vector<LearnedAddress>> addresses = extract_addresses(answer);
  if (!addresses) {
    ++counters_.malformed;
    return;
  }
  Exchange& exchange = *found->second;
  exchange.addresses_ = std::move(*addresses);
  exchange.answer_.assign(answer.begin(), answer.end());
  exchange.answered_ = now;
  exchange.finish(ExchangeStatus::kAnswered);
}

void PendingQueries::fail_all(ExchangeStatus status) {
  for (Exchange* exchange : take_all()) exchange->finish(status);
}

std::vector<Exchange*> PendingQueries::take_all() {
  std::vector<Exchange*> exchanges;
  exchanges.reserve(by_id_.size());
  for (const auto& [id, exchange] : by_id_) {
    exchange->pending_ = nullptr;
    exchanges.push_back(exchange);
  }
  by_id_.clear();
  return exchanges;
}

}  // namespace mapgate::dns
