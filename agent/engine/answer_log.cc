// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/answer_log.h"

#include <algorithm>

namespace mapgate::engine {

void AnswerLog::record(std::string_view workload, const dns::AnswerRecord& record) {
  // The oldest one's memory serves the newest.
  AnswerTrace trace;
  if (answers_.size() >= kCapacity) {
    trace = std::move(answers_.front());
    answers_.pop_front();
  }
  trace.workload = workload;
  trace.name = record.name;
  trace.type = record.type;
  trace.addresses.clear();
  const std::size_t count = std::min(record.addresses.size(), AnswerTrace::kMaxAddresses);
  for (const dns::LearnedAddress& learned : record.addresses.first(count))
    trace.addresses.push_back(learned.address);
  trace.hold = record.hold;
  trace.released = record.released;
  trace.query_arrived = record.query_arrived;
  trace.upstream_answered = record.upstream_answered;
  trace.answer_sent = record.answer_sent;
  answers_.push_back(std::move(trace));
}

}  // namespace mapgate::engine
