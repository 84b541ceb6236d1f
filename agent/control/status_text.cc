// SPDX-License-Identifier: Apache-2.0
#include "agent/control/status_text.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "agent/control/map_text.h"
#include "agent/control/row_text.h"

namespace mapgate::control {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxErrors = 20;

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json describe_dns(const dns::ProxyCounters& counters) {
  return {{"queries_udp", counters.queries_udp},
          {"queries_tcp", counters.queries_tcp},
          {"tcp_connections", counters.tcp_connections},
          {"malformed", counters.malformed},
          {"oversized", counters.oversized},
          {"unknown_flows", counters.unknown_flows},
          {"format_errors", counters.format_errors},
          {"not_implemented", counters.not_implemented},
          {"refused", counters.refused},
          {"denied_nxdomain", counters.denied_nxdomain},
          {"denied_dropped", counters.denied_dropped},
          {"resolvers_refused", counters.resolvers_refused},
          {"audited", counters.audited},
          {"overloaded", counters.overloaded},
          {"upstream_failures", counters.upstream_failures},
          {"upstream_limited", counters.upstream_limited},
          {"upstream_timeouts", counters.upstream_timeouts},
          {"answers_unmatched", counters.answers_unmatched},
          {"answers_wrong_question", counters.answers_wrong_question},
          {"answers_malformed", counters.answers_malformed},
          {"answers_servfail", counters.answers_servfail},
          {"answers_passed", counters.answers_passed},
          {"answers_released", counters.answers_released},
          {"holds_timed_out", counters.holds_timed_out},
          {"holds_overloaded", counters.holds_overloaded},
          {"holds_failed", counters.holds_failed},
          {"held_released", counters.held_released},
          {"held_servfail", counters.held_servfail},
          {"held_dropped", counters.held_dropped},
          {"tcp_rejected", counters.tcp_rejected},
          {"send_failures", counters.send_failures}};
}

Json describe_names(const dns::NameCache& names) {
  const dns::NameCacheCounters& counters = names.counters();
  return {{"names", names.names()},
          {"addresses", names.addresses()},
          {"pairs", names.pairs()},
          {"learned", counters.learned},
          {"refreshed", counters.refreshed},
          {"expired", counters.expired},
          {"forgotten", counters.forgotten},
          {"evicted",
           counters.evicted_per_name + counters.evicted_per_workload + counters.evicted_total},
          {"evicted_in_use", counters.evicted_in_use},
          {"too_many", counters.too_many}};
}

Json describe_reconciler(const engine::AdoptingOperations::Counters& operations,
                         const reconciler::ResyncStatus& resync) {
  return {{"writes", operations.written},
          {"deletes", operations.deleted},
          {"failures", operations.failed},
          {"adopted", operations.adopted + resync.adopted},
          {"repaired", resync.repaired},
          {"removed", resync.removed},
          {"resyncs", resync.completed},
          {"resync_error", resync.error ? Json(resync.error->text) : Json()}};
}

Json describe_revocation(const engine::Revocation& revocation) {
  const engine::Revocation::Counters& counters = revocation.counters();
  return {{"ended", counters.ended},
          {"failed", counters.failed},
          {"unlisted", counters.unlisted},
          {"recent", revocation.recent()}};
}

Json describe_times(const engine::DurationHistogram& times) {
  const auto us = [](std::chrono::nanoseconds duration) {
    return static_cast<double>(duration.count()) / 1000;
  };
  return {{"count", times.count()},
          {"sum_us", us(times.sum())},
          {"p50_us", us(times.quantile(0.5))},
          {"p90_us", us(times.quantile(0.9))},
          {"p99_us", us(times.quantile(0.99))},
          {"max_us", us(times.max())}};
}

Json describe_answer_times(const engine::AnswerTimes& times) {
  return {{"upstream", describe_times(times.upstream)},
          {"table", describe_times(times.table)},
          {"kernel", describe_times(times.kernel)},
          {"release", describe_times(times.release)}};
}

Json describe_store(const state::StoreHealth& health) {
  return {{"queued", health.queued},
          {"written", health.written},
          {"dropped", health.dropped},
          {"failures", health.failures},
          {"error", health.last_error ? Json(health.last_error->text) : Json()}};
}

Json describe_datapath(const engine::DatapathHealth& health) {
  return {{"inspections", health.inspections},
          {"repaired", health.repaired},
          {"last_repair", or_null(health.last_repair)},
          {"problems", health.problems}};
}

Json describe_network(const engine::WorkloadNetwork& network) {
  Json ports = {{"udp4", network.ports.udp4},
                {"udp6", network.ports.udp6},
                {"tcp4", network.ports.tcp4},
                {"tcp6", network.ports.tcp6}};
  return {{"cookie", network.cookie},
          {"inode", network.inode},
          {"ports", std::move(ports)},
          {"error", or_null(network.error)}};
}

// Those that this workload has processes in.
Json describe_networks(const engine::NetworkStatus& status, engine::WorkloadId workload) {
  Json result = Json::array();
  for (const engine::WorkloadNetwork& network : status.networks)
    if (network.workloads.contains(workload)) result.push_back(describe_network(network));
  return result;
}

Json describe_networks(const engine::NetworkStatus& status) {
  return {{"present", status.networks.size()}, {"opened", status.opened},
          {"closed", status.closed},           {"refused", status.refused},
          {"failed", status.failed},           {"not_found", status.not_found},
          {"queries_before", status.queries}};
}

Json describe_fault(const policy::SpecError& fault) {
  return {{"file", fault.file},
          {"line", fault.line},
          {"column", fault.column},
          {"pointer", fault.pointer},
          {"reason", fault.reason}};
}

Json describe_workloads(const ApiSources& sources) {
  Json result = Json::array();
  const engine::PolicyEngine& engine = sources.engine;
  const engine::NetworkStatus networks = sources.networks();
  for (const auto& [id, workload] : engine.policy().workloads()) {
    const engine::WorkloadBindings::Binding* binding = engine.bindings().find(workload.cgroup);
    const bool attached = binding != nullptr && binding->cgroup.has_value();
    const bool failed = binding != nullptr && !binding->error.empty();
    Json entry = {{"name", workload.name},
                  {"id", id},
                  {"mode", workload.mode == policy::Mode::kAudit ? "audit" : "enforce"},
                  {"cgroup", workload.cgroup},
                  {"attached", attached},
                  {"cgroup_id", attached ? Json(*binding->cgroup) : Json()},
                  {"state", binding == nullptr ? "pending"
                            : failed           ? "failed"
                            : attached         ? "enforced"
                                               : "waiting"},
                  {"error", failed ? Json(binding->error) : Json()}};
    const mg_counters counters = sources.counters(id).value_or(mg_counters{});
    entry["denied"] = {{"connects", counters.denied_connects},
                       {"sends", counters.denied_sends},
                       {"packets", counters.denied_packets},
                       {"queries", engine.denied_queries().count(id)}};
    entry["audited"] = counters.audited;
    entry["steered"] = counters.steered;
    entry["events_dropped"] = counters.events_dropped;
    entry["unserved"] = counters.unserved;
    entry["networks"] = describe_networks(networks, id);
    result.push_back(std::move(entry));
  }
  return result;
}

Json describe_spec(const ApiSources& sources) {
  const engine::ReloadResult& last = sources.specs.last();
  const engine::SpecState state = sources.specs.state();
  const bool blocked = state == engine::SpecState::kBlocked;
  return {{"file", sources.specs.file().string()},
          {"state", engine::to_string(state)},
          {"revision", last.revision},
          {"phase", or_null(sources.engine.phase())},
          {"error", or_null(blocked ? sources.engine.blocked_by() : last.error)},
          {"errors", describe_faults(last.faults)}};
}

Json describe_errors(const ApiSources& sources) {
  const engine::PolicyEngine& engine = sources.engine;
  const RowText text(engine.allocations(), engine.options().indices);
  Json result = Json::array();
  for (const auto& [key, status] : engine.loop().reconciler().first_errors(kMaxErrors)) {
    result.push_back({{"map", text.map_name(key.map())},
                      {"workload", text.workload(text.workload_of(key))},
                      {"key", text.key(key)},
                      {"error", status.error ? error_text(*status.error) : ""}});
  }
  return result;
}

}  // namespace

Json describe_status(const ApiSources& sources, std::size_t waiters) {
  const engine::PolicyEngine& engine = sources.engine;
  const reconciler::Progress progress = engine.loop().reconciler().progress();
  const Json missing = or_null(sources.foreign_sockets_missing);
  return {{"version", sources.version},
          {"pid", getpid()},
          {"epoch", progress.epoch.to_string()},
          {"revision", progress.revision},
          {"lowest_unreconciled", progress.lowest_unreconciled},
          {"rows",
           {{"pending", progress.pending},
            {"done", progress.done},
            {"error", progress.errors},
            {"parked", progress.parked}}},
          {"gates",
           {{"open", progress.open_gates},
            {"held_answers", engine.held_answers().size()},
            {"waiters", waiters}}},
          {"maps", describe_maps(sources.maps())},
          {"declared_maps", describe_declared(sources.declared)},
          {"workloads", describe_workloads(sources)},
          {"dns", describe_dns(sources.dns())},
          {"networks", describe_networks(sources.networks())},
          {"answer_times", describe_answer_times(engine.answer_times())},
          {"names", describe_names(engine.names())},
          {"reconciler", describe_reconciler(engine.operations(), progress.resync)},
          {"spec", describe_spec(sources)},
          {"connections", describe_revocation(engine.revocation())},
          {"store", describe_store(engine.store_health())},
          {"errors", describe_errors(sources)},
          {"datapath", describe_datapath(sources.datapath())},
          {"degraded", or_null(engine.bindings().degraded())},
          {"capabilities",
           {{"foreign_sockets", missing.is_null()}, {"foreign_sockets_missing", missing}}}};
}

Json describe_faults(const std::vector<policy::SpecError>& faults) {
  Json result = Json::array();
  for (const policy::SpecError& fault : faults) result.push_back(describe_fault(fault));
  return result;
}

}  // namespace mapgate::control
