// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/spec_controller.h"

#include <exception>
#include <utility>

#include <boost/asio/co_spawn.hpp>

namespace mapgate::engine {

std::string_view to_string(SpecState state) {
  switch (state) {
    case SpecState::kNone:
      return "none";
    case SpecState::kApplying:
      return "applying";
    case SpecState::kBlocked:
      return "blocked";
    case SpecState::kApplied:
      return "applied";
    case SpecState::kRejected:
      return "rejected";
  }
  return "unknown";
}

SpecState SpecController::state() const {
  if (running_ > 0)
    return engine_.blocked_by().empty() ? SpecState::kApplying : SpecState::kBlocked;
  if (!last_.error.empty()) return SpecState::kRejected;
  return any_applied_ ? SpecState::kApplied : SpecState::kNone;
}

void SpecController::start(policy::Spec spec, Done done) {
  run(engine_.start(std::move(spec)), std::move(done));
}

void SpecController::reload(Done done) {
  auto spec = policy::load_spec(file_);
  if (spec) return run(engine_.apply(std::move(*spec)), std::move(done));
  ReloadResult result;
  result.faults = std::move(spec.error());
  result.error = result.faults.empty() ? "the spec is refused" : result.faults.front().to_string();
  if (result.faults.size() > 1)
    result.error += " (and " + std::to_string(result.faults.size() - 1) + " more)";
  finish(std::move(result), done);
}

void SpecController::run(boost::asio::awaitable<ApplyResult> apply, Done done) {
  ++running_;
  boost::asio::co_spawn(
      io_, std::move(apply),
      [this, done = std::move(done)](const std::exception_ptr& exception, ApplyResult applied) {
        if (exception) std::rethrow_exception(exception);
        --running_;
        finish({applied.outcome, applied.revision, std::move(applied.error), {}}, done);
      });
}

void SpecController::finish(ReloadResult result, const Done& done) {
  switch (result.outcome) {
    case ApplyOutcome::kApplied:
      any_applied_ = true;
      revision_ = result.revision;
      log_.info("spec {} is in force, revision {}", file_.string(), result.revision);
      break;
    case ApplyOutcome::kSuperseded:
      break;
    case ApplyOutcome::kRefused:
    case ApplyOutcome::kFailed:
      log_.error("spec {} is refused: {}", file_.string(), result.error);
      break;
  }
  if (result.outcome != ApplyOutcome::kSuperseded) {
    last_ = result;
    last_.revision = revision_;
  }
  done(result);
}

}  // namespace mapgate::engine
