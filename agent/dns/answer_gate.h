// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "agent/policy/address.h"

namespace mapgate::dns {

using WorkloadId = std::uint32_t;

// CLOCK_MONOTONIC, in nanoseconds.
using TimePoint = std::chrono::steady_clock::time_point;

// An address that an answer brings, and how long it may be used: the lowest TTL on the way to it.
struct LearnedAddress {
  policy::IpAddress address;
  std::chrono::seconds ttl{};

  friend bool operator==(const LearnedAddress&, const LearnedAddress&) = default;
};

// What becomes of an answer whose addresses did not get into the kernel.
enum class OnGateTimeout : std::uint8_t { kServfail, kRelease, kDrop };

// What a client is told that asks for a name which its workload may not resolve.
enum class DeniedNameAnswer : std::uint8_t { kRefused, kNxdomain, kDrop };

// What the policy says about a question.
struct Verdict {
  bool may_resolve = false;
  // The workload is only watched: a name that it may not resolve is resolved and counted, and an
  // answer is released whatever becomes of its hold.
  bool audit = false;
  OnGateTimeout on_gate_timeout = OnGateTimeout::kServfail;
  DeniedNameAnswer on_denied_name = DeniedNameAnswer::kRefused;
};

enum class DenialReason : std::uint8_t { kName, kResolver };

// A query that the policy does not allow. `name` is valid during the call only.
struct DeniedQuery {
  WorkloadId workload = 0;
  std::string_view name;  // the question's, as in Question::name
  policy::IpAddress resolver;
  DenialReason reason = DenialReason::kName;
  bool audited = false;  // audit mode: it was resolved, but opens nothing
};

enum class HoldOutcome : std::uint8_t {
  kOpened,     // the kernel holds every address, or nothing had to be opened
  kTimedOut,   // the deadline passed
  kFailed,     // an address cannot be written
  kWithdrawn,  // the name, or the workload, was revoked meanwhile
  kCancelled,
  kShuttingDown,
  kRefused,     // no gate could be made: the addresses exceed a limit, or the maps are not in use
  kOverloaded,  // as many answers are held as may be, of the workload or in all
};
[[nodiscard]] std::string_view to_string(HoldOutcome outcome);

// Views are valid during the call only.
struct HoldRequest {
  WorkloadId workload = 0;
  std::string_view name;  // the question's, as in Question::name
  std::span<const LearnedAddress> addresses;
};

struct HoldResult {
  HoldOutcome outcome = HoldOutcome::kOpened;
  std::uint64_t revision = 0;  // of the rows that were waited for; 0: there were none
  TimePoint committed{};       // when the rows were in the table
  TimePoint realised{};        // when the kernel had them; only with kOpened
};

using HoldCallback = std::move_only_function<void(const HoldResult&)>;

// One held answer, once it is decided. `name` and `addresses` are valid during the call only.
struct AnswerRecord {
  WorkloadId workload = 0;
  std::string_view name;
  std::uint16_t type = 0;  // the question's
  std::span<const LearnedAddress> addresses;
  HoldResult hold;
  bool released = false;  // the answer went to the client; otherwise SERVFAIL or nothing did
  TimePoint query_arrived{};
  TimePoint upstream_answered{};
  // When the send of the answer (or the SERVFAIL) returned; zero: it failed, or nothing was sent.
  TimePoint answer_sent{};
};

// What a DNS session asks of the policy. Called in the proxy's thread only.
class AnswerGate {
 public:
  virtual ~AnswerGate() = default;

  // May `workload` resolve `name` (as in Question::name)?
  [[nodiscard]] virtual Verdict judge(WorkloadId workload, std::string_view name) = 0;

  // May `workload` ask this resolver at all?
  [[nodiscard]] virtual bool may_ask(WorkloadId workload, const policy::IpAddress& resolver) = 0;

  // After every query that judge() or may_ask() does not allow.
  virtual void denied(const DeniedQuery& query) = 0;

  // Learns the addresses and calls `done` exactly once when the kernel holds all of them, or will
  // not: in the proxy's thread, before hold() returns or later. An answer that changes nothing
  // still waits for rows that are pending. `done` may outlive the proxy: it does nothing then.
  virtual void hold(const HoldRequest& request, HoldCallback done) = 0;

  // After every hold, once the outcome has left: for tracing.
  virtual void answered(const AnswerRecord& record) = 0;
};

}  // namespace mapgate::dns
