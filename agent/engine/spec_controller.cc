// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/spec_controller.h"

#include <exception>
#include <utility>

#include <boost/asio/co_spawn.hpp>

namespace mapgate::engine {
namespace {

ReloadResult refused(std::vector<policy::SpecError> faults) {
  ReloadResult result;
  result.error = faults.empty() ? "the spec is refused" : faults.front().to_string();
  if (faults.size() > 1) result.error += " (and " + std::to_string(faults.size() - 1) + " more)";
  result.faults = std::move(faults);
  return result;
}

}  // namespace

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
  run(std::move(spec), &PolicyEngine::start, std::move(done));
}

void SpecController::reload(Done done) {
  auto spec = policy::load_spec(file_);
  if (spec) return run(std::move(*spec), &PolicyEngine::apply, std::move(done));
  finish(++turns_, refused(std::move(spec.error())), done);
}

void SpecController::run(policy::Spec spec, Apply apply, Done done) {
  ++running_;
  boost::asio::co_spawn(io_, bring_in(std::move(spec), apply),
                        [this, turn = ++turns_, done = std::move(done)](
                            const std::exception_ptr& exception, ReloadResult result) {
                          if (exception) std::rethrow_exception(exception);
                          --running_;
                          finish(turn, std::move(result), done);
                        });
}

boost::asio::awaitable<ReloadResult> SpecController::bring_in(policy::Spec spec, Apply apply) {
  auto prepared = co_await maps_.prepare(std::move(spec.maps));
  if (!prepared) co_return refused(std::move(prepared.error()));
  ApplyResult applied = co_await (engine_.*apply)(std::move(spec));
  ReloadResult result{applied.outcome, applied.revision, std::move(applied.error), {}, {}};
  if (applied.outcome == ApplyOutcome::kApplied) {
    maps_.put_in_force(std::move(*prepared));
    co_await maps_.settled();
    result.problems = maps_.problems();
  }
  co_return result;
}

void SpecController::finish(std::uint64_t turn, ReloadResult result, const Done& done) {
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
      for (std::size_t i = 1; i < result.faults.size(); ++i)
        log_.error("{}", result.faults[i].to_string());
      break;
  }
  // One that took long must not hide what became of a newer one.
  if (result.outcome != ApplyOutcome::kSuperseded && turn > last_turn_) {
    last_turn_ = turn;
    last_ = result;
    last_.revision = revision_;
  }
  done(result);
}

}  // namespace mapgate::engine
