// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "agent/dns/answer_gate.h"

namespace mapgate::engine {

// One DNS answer that was held, kept for those who want to see when what happened.
struct AnswerTrace {
  std::string workload;
  std::string name;
  std::uint16_t type = 0;
  std::vector<policy::IpAddress> addresses;  // at most kMaxAddresses of them
  dns::HoldResult hold;
  bool released = false;
  dns::TimePoint query_arrived{};
  dns::TimePoint upstream_answered{};
  dns::TimePoint answer_sent{};

  static constexpr std::size_t kMaxAddresses = 32;
};

// The last answers, oldest first.
class AnswerLog {
 public:
  static constexpr std::size_t kCapacity = 256;

  void record(std::string_view workload, const dns::AnswerRecord& record);
  [[nodiscard]] const std::deque<AnswerTrace>& answers() const { return answers_; }

 private:
  std::deque<AnswerTrace> answers_;
};

}  // namespace mapgate::engine
