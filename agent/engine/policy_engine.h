// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/dns/answer_gate.h"
#include "agent/dns/name_cache.h"
#include "agent/dns/system_resolvers.h"
#include "agent/engine/adopting_operations.h"
#include "agent/engine/answer_log.h"
#include "agent/engine/answer_times.h"
#include "agent/engine/denied_queries.h"
#include "agent/engine/held_answers.h"
#include "agent/engine/learned_names.h"
#include "agent/engine/map_control.h"
#include "agent/engine/reconcile_loop.h"
#include "agent/engine/revocation.h"
#include "agent/engine/types.h"
#include "agent/engine/workload_bindings.h"
#include "agent/policy/compile.h"
#include "agent/policy/reload.h"
#include "agent/state/store.h"

namespace mapgate::engine {

struct EngineOptions {
  policy::MapIndices indices;
  policy::NodeSettings node;  // of the start; sizes of maps may change with a policy
  reconciler::Options reconciler;
  // False lets answers go before the kernel has their addresses: to measure what holding costs.
  bool hold_answers = true;
};

enum class ApplyOutcome : std::uint8_t {
  kApplied,  // in force
  kRefused,  // it cannot be compiled, does not fit, or changes what cannot change; nothing happened
  kFailed,   // the kernel refuses a row; what was in force before is in force again
  kSuperseded,  // a newer one took its place
};

struct ApplyResult {
  ApplyOutcome outcome = ApplyOutcome::kApplied;
  reconciler::Revision revision = 0;  // with kApplied: of its last row
  std::string error;                  // one line, with kRefused and kFailed
};

// Keeps the kernel's maps at what the policy and the learned names say, holds DNS answers until it
// is so, and changes the policy with no moment in between that either policy would not allow. For
// the thread of `io`.
class PolicyEngine final : public dns::AnswerGate {
 public:
  // All of these outlive the engine.
  struct Environment {
    boost::asio::io_context& io;
    Operations& operations;
    MapControl& maps;
    WorkloadBindings& bindings;
    Connections& connections;
    state::Store& store;
    dns::SystemResolvers& system_resolvers;
    spdlog::logger& log;
  };

  PolicyEngine(const Environment& environment, reconciler::Epoch epoch,
               const EngineOptions& options);
  ~PolicyEngine() override;
  PolicyEngine(const PolicyEngine&) = delete;
  PolicyEngine& operator=(const PolicyEngine&) = delete;

  // The first policy, onto whatever an earlier process left in the maps: what is right there is
  // taken over as it is, learned addresses included. Ends when the kernel has the policy. Once,
  // before apply(). Before it, and when it fails, nothing is changed.
  [[nodiscard]] boost::asio::awaitable<ApplyResult> start(policy::Spec spec);

  // Puts a new policy in force: add, wait until realised, then remove. One after the other; of
  // several that wait the newest wins. While one is blocked by a row that cannot be written, a
  // newer one takes its place.
  [[nodiscard]] boost::asio::awaitable<ApplyResult> apply(policy::Spec spec);

  // Every gate ends now; nothing is held from here on.
  void shut_down();

  // dns::AnswerGate.
  [[nodiscard]] dns::Verdict judge(dns::WorkloadId workload, std::string_view name) override;
  [[nodiscard]] bool may_ask(dns::WorkloadId workload, const policy::IpAddress& resolver) override;
  void denied(const dns::DeniedQuery& query) override;
  void hold(const dns::HoldRequest& request, dns::HoldCallback done) override;
  void answered(const dns::AnswerRecord& record) override;

  // For status.
  [[nodiscard]] const policy::CompiledPolicy& policy() const { return *active_; }
  [[nodiscard]] const policy::Allocations& allocations() const { return allocations_; }
  [[nodiscard]] const dns::NameCache& names() const { return names_.cache(); }
  [[nodiscard]] const AnswerLog& answers() const { return answers_; }
  [[nodiscard]] const Revocation& revocation() const { return revocation_; }
  [[nodiscard]] const AnswerTimes& answer_times() const { return answer_times_; }
  [[nodiscard]] const DeniedQueries& denied_queries() const { return denied_queries_; }
  [[nodiscard]] const Table& table() const { return table_; }
  [[nodiscard]] ReconcileLoop& loop() { return loop_; }
  [[nodiscard]] const ReconcileLoop& loop() const { return loop_; }
  [[nodiscard]] const AdoptingOperations::Counters& operations() const {
    return operations_.counters();
  }
  [[nodiscard]] const WorkloadBindings& bindings() const { return bindings_; }
  [[nodiscard]] state::StoreHealth store_health() const { return store_.health(); }
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const HeldAnswers::List& held_answers() const { return held_.list(); }
  // The phase that a change of policy waits in, and what it waits for if that is an error; empty:
  // none.
  [[nodiscard]] const std::string& phase() const { return phase_; }
  [[nodiscard]] const std::string& blocked_by() const { return blocked_by_; }
  // The workload's name; empty if there is none of this id.
  [[nodiscard]] std::string_view workload_name(WorkloadId workload) const;

 private:
  using PolicyPointer = std::shared_ptr<const policy::CompiledPolicy>;
  enum class PhaseEnd : std::uint8_t { kRealised, kFailed, kSuperseded, kShuttingDown };
  enum class GiveUp : std::uint8_t { kNever, kWhenBlocked };

  [[nodiscard]] bool all_realised(const std::vector<maps::RowKey>& keys) const;

  // Of the policy in force and the one on its way together.
  [[nodiscard]] policy::NameMatch match(WorkloadId workload, std::string_view name) const;
  [[nodiscard]] dns::AddressChanges repolicy_to_both();

  [[nodiscard]] std::expected<PolicyPointer, std::string> compile(const policy::Spec& spec);
  [[nodiscard]] boost::asio::awaitable<ApplyResult> change_policy(PolicyPointer to,
                                                                  policy::MapSizes sizes);
  [[nodiscard]] boost::asio::awaitable<std::expected<void, std::string>> resize(
      policy::MapSizes sizes);
  [[nodiscard]] boost::asio::awaitable<void> all_attempted();
  [[nodiscard]] boost::asio::awaitable<void> roll_back(policy::ReloadPlan plan);
  [[nodiscard]] boost::asio::awaitable<PhaseEnd> run_phase(std::string name,
                                                           const policy::ReloadPhase& rows,
                                                           const dns::AddressChanges& learned,
                                                           GiveUp give_up);
  [[nodiscard]] boost::asio::awaitable<PhaseEnd> wait_for_phase(std::vector<maps::RowKey> keys,
                                                                GiveUp give_up);
  [[nodiscard]] std::string first_error(const std::vector<maps::RowKey>& keys) const;
  [[nodiscard]] boost::asio::awaitable<void> end_forbidden_connections();
  [[nodiscard]] boost::asio::awaitable<void> wait_for_turn();
  void bind_workloads();
  void unbind_workloads(const policy::CompiledPolicy& old);
  void save_allocations();

  [[nodiscard]] boost::asio::awaitable<void> finish_start();

  boost::asio::io_context& io_;
  MapControl& maps_;
  WorkloadBindings& bindings_;
  state::Store& store_;
  dns::SystemResolvers& system_resolvers_;
  spdlog::logger& log_;
  EngineOptions options_;

  HeldAnswers held_;
  AdoptingOperations operations_;
  Table table_;
  reconciler::SourceId spec_source_;
  reconciler::SourceId names_source_;
  ReconcileLoop loop_;

  LearnedNames names_;
  AnswerLog answers_;
  Revocation revocation_;
  AnswerTimes answer_times_;
  DeniedQueries denied_queries_;

  policy::Allocations allocations_;
  PolicyPointer active_ = std::make_shared<policy::CompiledPolicy>();
  PolicyPointer next_;  // on its way: its names may be resolved, and open what they open in both

  std::uint64_t newest_apply_ = 0;   // asked for
  std::uint64_t current_apply_ = 0;  // in work
  bool applying_ = false;
  boost::asio::steady_timer turn_;  // never fires; cancelled when an apply ends
  std::string phase_;
  std::string blocked_by_;
  reconciler::Revision policy_revision_ = 0;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
