// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/policy_engine.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
using reconciler::TimePoint;

// How often a phase that is not realised is looked at for what holds it up.
constexpr auto kPhaseCheckInterval = std::chrono::seconds(1);
// How often a start looks whether it is complete.
constexpr auto kStartCheckInterval = std::chrono::milliseconds(200);

TimePoint now() {
  return std::chrono::steady_clock::now();
}

dns::OnGateTimeout to_dns(policy::GateTimeoutAction action) {
  switch (action) {
    case policy::GateTimeoutAction::kServfail:
      return dns::OnGateTimeout::kServfail;
    case policy::GateTimeoutAction::kRelease:
      return dns::OnGateTimeout::kRelease;
    case policy::GateTimeoutAction::kDrop:
      return dns::OnGateTimeout::kDrop;
  }
  return dns::OnGateTimeout::kServfail;
}

dns::DeniedNameAnswer to_dns(policy::DeniedNameAnswer answer) {
  switch (answer) {
    case policy::DeniedNameAnswer::kRefused:
      return dns::DeniedNameAnswer::kRefused;
    case policy::DeniedNameAnswer::kNxdomain:
      return dns::DeniedNameAnswer::kNxdomain;
    case policy::DeniedNameAnswer::kDrop:
      return dns::DeniedNameAnswer::kDrop;
  }
  return dns::DeniedNameAnswer::kRefused;
}

dns::HoldOutcome to_dns(reconciler::GateOutcome outcome) {
  switch (outcome) {
    case reconciler::GateOutcome::kOpened:
      return dns::HoldOutcome::kOpened;
    case reconciler::GateOutcome::kWithdrawn:
      return dns::HoldOutcome::kWithdrawn;
    case reconciler::GateOutcome::kFailed:
      return dns::HoldOutcome::kFailed;
    case reconciler::GateOutcome::kTimedOut:
      return dns::HoldOutcome::kTimedOut;
    case reconciler::GateOutcome::kCancelled:
      return dns::HoldOutcome::kCancelled;
    case reconciler::GateOutcome::kShuttingDown:
      return dns::HoldOutcome::kShuttingDown;
  }
  return dns::HoldOutcome::kFailed;
}

ApplyResult refused(std::string error) {
  return {ApplyOutcome::kRefused, 0, std::move(error)};
}

}  // namespace

PolicyEngine::PolicyEngine(const Environment& environment, reconciler::Epoch epoch,
                           const EngineOptions& options)
    : io_(environment.io),
      maps_(environment.maps),
      bindings_(environment.bindings),
      store_(environment.store),
      system_resolvers_(environment.system_resolvers),
      log_(environment.log),
      options_(options),
      held_(options.node.dns),
      operations_(environment.operations),
      table_(epoch),
      spec_source_(table_.add_source("spec")),
      names_source_(table_.add_source("learned names")),
      loop_(environment.io, table_, operations_, options.reconciler),
      names_(environment.io, table_, environment.store, environment.connections, environment.log,
             options.indices, options.node.dns),
      revocation_(environment.connections, environment.log),
      denied_queries_(environment.log),
      turn_(environment.io) {}

PolicyEngine::~PolicyEngine() = default;

// --- start ---

asio::awaitable<ApplyResult> PolicyEngine::start(policy::Spec spec) {
  allocations_ = store_.allocations();
  auto compiled = compile(spec);
  if (!compiled) co_return refused(compiled.error());
  if (auto read = operations_.take_snapshot(); !read)
    co_return refused("cannot read the maps: " + read.error().text);

  std::set<std::string> cgroups;
  for (const auto& [id, workload] : (*compiled)->workloads()) cgroups.insert(workload.cgroup);
  bindings_.detach_others(cgroups);

  applying_ = true;
  active_ = *compiled;
  phase_ = "start";
  std::vector<maps::RowKey> keys;
  auto transaction = table_.begin();
  for (policy::Row& row : active_->rows()) {
    keys.push_back(row.key);
    transaction.put(std::move(row.key), std::move(row.value));
  }
  names_.restore(*active_, operations_.snapshot(), transaction);
  policy_revision_ = std::move(transaction).commit(now()).revision;
  table_.source_complete(spec_source_);
  table_.source_complete(names_source_);
  loop_.reconciler().request_resync();
  loop_.start();

  const PhaseEnd end = co_await wait_for_phase(std::move(keys), GiveUp::kNever);
  phase_.clear();
  applying_ = false;
  turn_.cancel();
  if (end != PhaseEnd::kRealised)
    co_return ApplyResult{ApplyOutcome::kFailed, 0, "the daemon ends"};
  if (maps_.awaits_contents()) {
    co_await all_attempted();
    if (auto complete = maps_.contents_complete(); !complete)
      co_return ApplyResult{ApplyOutcome::kFailed, 0, complete.error()};
  }
  bind_workloads();
  asio::co_spawn(io_, finish_start(), asio::detached);
  co_return ApplyResult{ApplyOutcome::kApplied, policy_revision_, {}};
}

// Learned addresses, too: what the maps of before opened must be open in new ones. A row that fails
// is no reason to wait.
asio::awaitable<void> PolicyEngine::all_attempted() {
  asio::steady_timer timer(io_);
  while (loop_.reconciler().progress().lowest_never_attempted <= policy_revision_) {
    timer.expires_after(std::chrono::milliseconds(1));
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

// Once the maps are compared as a whole and what nobody wants is gone, so are the old ids and bits.
// Nobody waits for this, and a gate would count as one: it looks now and then.
asio::awaitable<void> PolicyEngine::finish_start() {
  const auto alive = std::weak_ptr(alive_);
  asio::steady_timer timer(io_);
  std::optional<reconciler::Revision> compared;
  for (;;) {
    timer.expires_after(kStartCheckInterval);
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    if (alive.expired()) co_return;
    const reconciler::Progress progress = loop_.reconciler().progress();
    if (progress.resync.completed == 0) continue;
    // What others changed since must not be hidden any more.
    operations_.drop_snapshot();
    if (!compared) compared = progress.revision;
    if (progress.lowest_unreconciled > *compared && !applying_) break;
  }
  save_allocations();
}

// --- changing the policy ---

std::expected<PolicyEngine::PolicyPointer, std::string> PolicyEngine::compile(
    const policy::Spec& spec) {
  policy::Allocations allocations = allocations_;
  auto compiled = policy::compile(spec, allocations, options_.indices);
  if (!compiled) return std::unexpected(compiled.error());
  // Before any row says so: a daemon that starts after a crash must know what ids and bits stand
  // for.
  if (allocations != allocations_) {
    if (auto saved = store_.save_allocations(allocations); !saved)
      return std::unexpected(saved.error().text);
    allocations_ = std::move(allocations);
  }
  return std::make_shared<const policy::CompiledPolicy>(std::move(*compiled));
}

asio::awaitable<ApplyResult> PolicyEngine::apply(policy::Spec spec) {
  if (spec.node.dns != options_.node.dns) {
    co_return refused("/node/dns cannot change while the daemon runs: restart it");
  }
  const std::uint64_t mine = ++newest_apply_;
  while (applying_) co_await wait_for_turn();
  if (mine != newest_apply_) co_return ApplyResult{ApplyOutcome::kSuperseded, 0, {}};
  auto compiled = compile(spec);
  if (!compiled) co_return refused(compiled.error());
  applying_ = true;
  current_apply_ = mine;
  ApplyResult result = co_await change_policy(*compiled, spec.node.maps);
  applying_ = false;
  phase_.clear();
  blocked_by_.clear();
  turn_.cancel();
  co_return result;
}

asio::awaitable<void> PolicyEngine::wait_for_turn() {
  turn_.expires_at(asio::steady_timer::time_point::max());
  co_await turn_.async_wait(asio::as_tuple(asio::use_awaitable));
}

asio::awaitable<std::expected<void, std::string>> PolicyEngine::resize(policy::MapSizes sizes) {
  if (sizes == options_.node.maps) co_return std::expected<void, std::string>();
  phase_ = "resize";
  auto resized = co_await maps_.resize(sizes);
  if (!resized) co_return resized;
  log_.info("the maps have room for {} addresses, {} prefixes and {} ports", sizes.addresses,
            sizes.prefixes, sizes.ports);
  options_.node.maps = sizes;
  co_return resized;
}

asio::awaitable<ApplyResult> PolicyEngine::change_policy(PolicyPointer to, policy::MapSizes sizes) {
  const auto plan = policy::plan_reload(*active_, *to, sizes);
  if (!plan) co_return refused(plan.error());
  auto way_back = policy::plan_reload(*to, *active_, sizes);
  if (!way_back) co_return refused(way_back.error());
  const policy::MapSizes old_sizes = options_.node.maps;
  if (auto resized = co_await resize(sizes); !resized) co_return refused(resized.error());
  const PolicyPointer old = active_;
  const dns::AddressChanges none;
  next_ = to;

  PhaseEnd end = co_await run_phase("split", plan->split, none, GiveUp::kWhenBlocked);
  if (end == PhaseEnd::kRealised) {
    const dns::AddressChanges learned = repolicy_to_both();
    end = co_await run_phase("widen", plan->widen, learned, GiveUp::kWhenBlocked);
  }
  if (end == PhaseEnd::kFailed || end == PhaseEnd::kSuperseded) {
    std::string error = std::exchange(blocked_by_, {});
    co_await roll_back(std::move(*way_back));
    if (auto resized = co_await resize(old_sizes); !resized)
      log_.warn("the maps keep their new sizes: {}", resized.error());
    save_allocations();
    co_return ApplyResult{
        end == PhaseEnd::kFailed ? ApplyOutcome::kFailed : ApplyOutcome::kSuperseded, 0, error};
  }
  if (end == PhaseEnd::kShuttingDown)
    co_return ApplyResult{ApplyOutcome::kFailed, 0, "the daemon ends"};

  // Nothing may come between what the names lose and its rows: not this, either.
  co_await revocation_.before(*old, *to);
  active_ = to;
  next_.reset();
  bind_workloads();
  unbind_workloads(*old);
  names_.forget_revoked(*active_, allocations_);
  const dns::AddressChanges learned =
      names_.repolicy([this](WorkloadId workload, std::string_view name, std::uint64_t present) {
        return name.empty() ? present & used_port_sets(*active_, workload_name(workload))
                            : active_->match(workload, name).port_sets;
      });
  end = co_await run_phase("narrow", plan->narrow, learned, GiveUp::kNever);
  if (end == PhaseEnd::kRealised)
    end = co_await run_phase("merge", plan->merge, none, GiveUp::kNever);
  if (end != PhaseEnd::kRealised)
    co_return ApplyResult{ApplyOutcome::kFailed, 0, "the daemon ends"};
  co_await end_forbidden_connections();
  save_allocations();
  co_return ApplyResult{ApplyOutcome::kApplied, policy_revision_, {}};
}

asio::awaitable<void> PolicyEngine::end_forbidden_connections() {
  const Revocation::ExpiredPortSets would_open = [this](WorkloadId workload,
                                                        const policy::IpAddress& address) {
    std::optional<std::uint64_t> port_sets;
    for (const std::string& name : names_.expired().find(workload, address))
      port_sets = port_sets.value_or(0) | active_->match(workload, name).port_sets;
    return port_sets;
  };
  co_await revocation_.after(*active_, would_open);
}

// The maps hold the old policy or more: back to the old one.
asio::awaitable<void> PolicyEngine::roll_back(policy::ReloadPlan plan) {
  next_.reset();
  const dns::AddressChanges none;
  const dns::AddressChanges learned = repolicy_to_both();  // without a next one: to the old one
  const PhaseEnd end = co_await run_phase("roll back", plan.narrow, learned, GiveUp::kNever);
  if (end == PhaseEnd::kRealised) co_await run_phase("roll back", plan.merge, none, GiveUp::kNever);
}

asio::awaitable<PolicyEngine::PhaseEnd> PolicyEngine::run_phase(std::string name,
                                                                const policy::ReloadPhase& rows,
                                                                const dns::AddressChanges& learned,
                                                                GiveUp give_up) {
  phase_ = std::move(name);
  std::vector<maps::RowKey> keys;
  auto transaction = table_.begin();
  for (const policy::Row& row : rows.write) {
    keys.push_back(row.key);
    transaction.put(row.key, row.value);
  }
  for (const maps::RowKey& key : rows.erase) {
    keys.push_back(key);
    transaction.erase(key);
  }
  // A learned address that the kernel has not taken so far is its own trouble: no reload waits for
  // it.
  for (const dns::AddressChange& change : learned) {
    maps::RowKey key = names_.key_of(change.workload, change.address);
    const auto status = loop_.reconciler().status(key);
    if (!status || !status->first_unreconciled) keys.push_back(std::move(key));
  }
  names_.stage(learned, transaction);
  if (transaction.empty()) co_return PhaseEnd::kRealised;
  policy_revision_ = std::max(policy_revision_, std::move(transaction).commit(now()).revision);
  co_return co_await wait_for_phase(std::move(keys), give_up);
}

asio::awaitable<PolicyEngine::PhaseEnd> PolicyEngine::wait_for_phase(std::vector<maps::RowKey> keys,
                                                                     GiveUp give_up) {
  asio::steady_timer pause(io_);
  for (;;) {
    const auto outcome = co_await loop_.rows_realised(keys, now() + kPhaseCheckInterval);
    const auto ended = outcome ? outcome->outcome : reconciler::GateOutcome::kTimedOut;
    if (ended == reconciler::GateOutcome::kOpened) {
      blocked_by_.clear();
      co_return PhaseEnd::kRealised;
    }
    if (ended == reconciler::GateOutcome::kShuttingDown) co_return PhaseEnd::kShuttingDown;
    std::string reason = outcome && outcome->error ? outcome->error->text : first_error(keys);
    if (!reason.empty() && reason != blocked_by_) {
      log_.warn("a change of policy waits in phase \"{}\": {}", phase_, reason);
    }
    blocked_by_ = std::move(reason);
    if (give_up == GiveUp::kWhenBlocked && ended == reconciler::GateOutcome::kFailed)
      co_return PhaseEnd::kFailed;
    if (give_up == GiveUp::kWhenBlocked && newest_apply_ != current_apply_)
      co_return PhaseEnd::kSuperseded;
    if (ended == reconciler::GateOutcome::kTimedOut) continue;
    // Withdrawn (a learned row that expired meanwhile) or failed: not to be asked again at once,
    // for ever.
    pause.expires_after(ended == reconciler::GateOutcome::kWithdrawn
                            ? std::chrono::milliseconds(1)
                            : std::chrono::milliseconds(1000));
    co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

std::string PolicyEngine::first_error(const std::vector<maps::RowKey>& keys) const {
  for (const maps::RowKey& key : keys) {
    const auto status = loop_.reconciler().status(key);
    if (status && status->error) return status->error->text;
  }
  return {};
}

void PolicyEngine::bind_workloads() {
  for (const auto& [id, workload] : active_->workloads()) bindings_.bind(workload.cgroup, id);
}

void PolicyEngine::unbind_workloads(const policy::CompiledPolicy& old) {
  std::set<std::string_view> kept;
  for (const auto& [id, workload] : active_->workloads()) kept.insert(workload.cgroup);
  for (const auto& [id, workload] : old.workloads()) {
    if (!kept.contains(workload.cgroup)) bindings_.unbind(workload.cgroup);
  }
}

// Releases the ids and bits that no row uses any more.
void PolicyEngine::save_allocations() {
  policy::Allocations released = allocations_;
  released.release_unused(active_->used_allocations());
  if (released == allocations_) return;
  if (const auto saved = store_.save_allocations(released); !saved) {
    log_.error("cannot release ids that are not used any more: {}", saved.error().text);
    return;
  }
  allocations_ = std::move(released);
}

void PolicyEngine::shut_down() {
  loop_.reconciler().shut_down();
}

// --- names ---

// What the policy in force and the one on its way open.
dns::AddressChanges PolicyEngine::repolicy_to_both() {
  return names_.repolicy([this](WorkloadId workload, std::string_view name, std::uint64_t present) {
    return name.empty() ? present : match(workload, name).port_sets;
  });
}

policy::NameMatch PolicyEngine::match(WorkloadId workload, std::string_view name) const {
  policy::NameMatch result = active_->match(workload, name);
  if (next_) {
    const policy::NameMatch coming = next_->match(workload, name);
    result.resolvable = result.resolvable || coming.resolvable;
    result.port_sets |= coming.port_sets;
  }
  return result;
}

dns::Verdict PolicyEngine::judge(dns::WorkloadId workload, std::string_view name) {
  const auto& workloads = active_->workloads();
  auto entry = workloads.find(workload);
  if (entry == workloads.end()) {
    if (!next_) return {};
    entry = next_->workloads().find(workload);
    if (entry == next_->workloads().end()) return {};
  }
  const policy::CompiledWorkload& settings = entry->second;
  return {match(workload, name).resolvable, settings.mode == policy::Mode::kAudit,
          to_dns(settings.on_gate_timeout), to_dns(settings.on_denied_name)};
}

bool PolicyEngine::may_ask(dns::WorkloadId workload, const policy::IpAddress& resolver) {
  for (const auto* policy : {active_.get(), next_.get()}) {
    if (policy == nullptr) continue;
    const auto entry = policy->workloads().find(workload);
    if (entry == policy->workloads().end()) continue;
    const policy::ResolverSelector& resolvers = entry->second.resolvers;
    if (resolvers.system && system_resolvers_.contains(resolver, now())) return true;
    const auto holds = [&](const policy::Prefix& prefix) { return prefix.contains(resolver); };
    if (std::ranges::any_of(resolvers.prefixes, holds)) return true;
  }
  return false;
}

void PolicyEngine::denied(const dns::DeniedQuery& query) {
  denied_queries_.record(query, workload_name(query.workload), now());
}

void PolicyEngine::hold(const dns::HoldRequest& request, dns::HoldCallback done) {
  const dns::TimePoint start = now();
  const std::uint64_t port_sets = match(request.workload, request.name).port_sets;
  if (port_sets == 0 || request.addresses.empty()) {
    return done({dns::HoldOutcome::kOpened, 0, start, start});
  }
  // The rows would be realised in maps that no program reads so far.
  if (maps_.awaits_contents()) return done({dns::HoldOutcome::kRefused, 0, {}, {}});
  auto transaction = table_.begin();
  if (!names_.learn(request, workload_name(request.workload), port_sets, transaction))
    return done({dns::HoldOutcome::kRefused, 0, {}, {}});
  const reconciler::Revision revision = std::move(transaction).commit(start).revision;
  const dns::TimePoint committed = now();
  if (!options_.hold_answers || loop_.reconciler().lowest_unreconciled() > revision) {
    return done({dns::HoldOutcome::kOpened, revision, committed, committed});
  }
  std::vector<maps::RowKey> keys;
  keys.reserve(request.addresses.size());
  for (const dns::LearnedAddress& learned : request.addresses)
    keys.push_back(names_.key_of(request.workload, learned.address));
  // What is learned stays: the client's next attempt finds it in the kernel.
  if (!held_.has_room(request.workload) && !all_realised(keys))
    return done({dns::HoldOutcome::kOverloaded, revision, committed, {}});

  // Whoever is called in the end, `done` is called once: by the gate, or here if there is none.
  struct Pending {
    dns::HoldCallback done;
    HeldAnswers::Place place;
  };
  auto pending = std::make_shared<Pending>(std::move(done), HeldAnswers::Place());
  const dns::TimePoint deadline = start + options_.node.dns.gate_deadline;
  auto ticket = loop_.reconciler().wait_for_rows(
      keys, deadline, [this, pending, revision, committed](reconciler::GateResult result) {
        held_.remove(pending->place);
        const bool opened = result.outcome == reconciler::GateOutcome::kOpened;
        pending->done(
            {to_dns(result.outcome), revision, committed, opened ? now() : dns::TimePoint{}});
      });
  if (!ticket) return pending->done({dns::HoldOutcome::kOverloaded, revision, committed, {}});
  if (const auto* result = std::get_if<reconciler::GateResult>(&*ticket)) {
    const bool opened = result->outcome == reconciler::GateOutcome::kOpened;
    return pending->done(
        {to_dns(result->outcome), revision, committed, opened ? committed : dns::TimePoint{}});
  }
  pending->place =
      held_.add({request.workload, std::string(request.name), std::move(keys), start, deadline});
}

bool PolicyEngine::all_realised(const std::vector<maps::RowKey>& keys) const {
  return std::ranges::all_of(keys, [this](const maps::RowKey& key) {
    const auto status = loop_.reconciler().status(key);
    return !status || !status->first_unreconciled;
  });
}

void PolicyEngine::answered(const dns::AnswerRecord& record) {
  answers_.record(workload_name(record.workload), record);
  answer_times_.record(record);
}

std::string_view PolicyEngine::workload_name(WorkloadId workload) const {
  for (const auto* policy : {active_.get(), next_.get()}) {
    if (policy == nullptr) continue;
    const auto entry = policy->workloads().find(workload);
    if (entry != policy->workloads().end()) return entry->second.name;
  }
  return {};
}

}  // namespace mapgate::engine
