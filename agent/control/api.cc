// SPDX-License-Identifier: Apache-2.0
#include "agent/control/api.h"

#include <unistd.h>

#include <charconv>
#include <memory>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>

#include "agent/control/declared_text.h"
#include "agent/control/http_server.h"
#include "agent/control/map_reader.h"
#include "agent/control/row_text.h"
#include "agent/dns/message.h"
#include "agent/engine/capacity_log.h"
#include "agent/schema/codec.h"

namespace mapgate::control {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kDefaultLimit = 1000;
constexpr std::size_t kMaxLimit = 10'000;
constexpr std::size_t kScanSlice = 4096;       // places of the table looked at with it locked
constexpr std::size_t kMaxPlaces = 64 * 1024;  // and in one request
constexpr std::size_t kMaxErrors = 20;         // shown by status
constexpr std::size_t kDecodeSlice = 256;      // entries between two looks at the loop's other work
constexpr milliseconds kDefaultTimeout = std::chrono::seconds(30);
constexpr milliseconds kMaxTimeout = std::chrono::seconds(600);

HttpResponse respond(const Json& body, unsigned status = 200) {
  // Names on the wire may hold bytes that are no UTF-8.
  return {status,
          "application/json",
          body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n",
          {}};
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Reads a request's parameters; the first fault is kept, and a parameter that nobody asked for is
// one.
class Parameters {
 public:
  explicit Parameters(const QueryParameters& query) : query_(query) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name) {
    ++used_;
    const auto entry = query_.find(name);
    if (entry == query_.end()) return (--used_, std::nullopt);
    return entry->second;
  }
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& name, std::uint64_t min,
                                                    std::uint64_t max) {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto number = parse_number<std::uint64_t>(*value);
    if (number && *number >= min && *number <= max) return number;
    fail(name + " must be a number from " + std::to_string(min) + " to " + std::to_string(max));
    return std::nullopt;
  }
  [[nodiscard]] milliseconds timeout() {
    const auto value = text("timeout");
    if (!value) return kDefaultTimeout;
    const auto seconds = parse_number<double>(*value);
    const double limit = std::chrono::duration<double>(kMaxTimeout).count();
    if (seconds && *seconds >= 0 && *seconds <= limit) {
      return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(*seconds));
    }
    fail("timeout must be a number of seconds from 0 to " +
         std::to_string(kMaxTimeout.count() / 1000));
    return kDefaultTimeout;
  }
  void fail(std::string fault) {
    if (!fault_) fault_ = std::move(fault);
  }

  // Once everything has been asked for.
  [[nodiscard]] std::optional<HttpResponse> fault() const {
    if (fault_) return problem(400, *fault_);
    if (used_ != query_.size())
      return problem(400, "there is a parameter that this path does not have");
    return std::nullopt;
  }

 private:
  const QueryParameters& query_;
  std::size_t used_ = 0;
  std::optional<std::string> fault_;
};

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

std::int64_t to_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
Json to_ns_or_null(Clock::time_point time) {
  return time == Clock::time_point{} ? Json() : Json(to_ns(time));
}

std::string error_text(const reconciler::RowError& error) {
  return error.error_class == reconciler::ErrorClass::kCapacity ? "map full: " + error.text
                                                                : error.text;
}

Json describe_error(const std::optional<reconciler::RowError>& error, Clock::time_point now) {
  if (!error) return {};
  Json result = {{"class", reconciler::to_string(error->error_class)},
                 {"errno", error->code},
                 {"text", error_text(*error)},
                 {"attempts", error->attempts},
                 {"next_retry_ms", nullptr}};
  if (error->next_retry) {
    result["next_retry_ms"] =
        std::chrono::duration_cast<milliseconds>(*error->next_retry - now).count();
  }
  return result;
}

std::string describe_type(std::uint16_t type) {
  switch (type) {
    case dns::kTypeA:
      return "A";
    case dns::kTypeAaaa:
      return "AAAA";
    case dns::kTypeSvcb:
      return "SVCB";
    case dns::kTypeHttps:
      return "HTTPS";
    default:
      return "TYPE" + std::to_string(type);  // RFC 3597
  }
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
          {"audited", counters.audited},
          {"overloaded", counters.overloaded},
          {"upstream_failures", counters.upstream_failures},
          {"upstream_timeouts", counters.upstream_timeouts},
          {"answers_unmatched", counters.answers_unmatched},
          {"answers_malformed", counters.answers_malformed},
          {"answers_passed", counters.answers_passed},
          {"answers_released", counters.answers_released},
          {"holds_timed_out", counters.holds_timed_out},
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

Json describe_fault(const policy::SpecError& fault) {
  return {{"file", fault.file},
          {"line", fault.line},
          {"column", fault.column},
          {"pointer", fault.pointer},
          {"reason", fault.reason}};
}

Json describe_faults(const std::vector<policy::SpecError>& faults) {
  Json result = Json::array();
  for (const policy::SpecError& fault : faults) result.push_back(describe_fault(fault));
  return result;
}

std::string no_map(const std::string& name, const engine::DeclaredMaps& declared) {
  std::string names;
  for (const auto& entry : declared.entries())
    names += (names.empty() ? "" : ", ") + entry->spec.name;
  return "there is no map " + name + "; " +
         (names.empty() ? "the spec declares none" : "the spec declares " + names);
}

HttpResponse problem_of(reconciler::GateRefusal refusal) {
  switch (refusal) {
    case reconciler::GateRefusal::kOtherEpoch:
      return problem(409, "the revision is of another start of the daemon");
    case reconciler::GateRefusal::kFutureRevision:
      return problem(404, "the revision has not been handed out yet");
    case reconciler::GateRefusal::kTooMany:
      return problem(503, "too many gates are open");
  }
  return problem(500, "no gate");
}

}  // namespace

// Counts a request that waits, as long as it does.
class Api::WaiterGuard {
 public:
  explicit WaiterGuard(std::shared_ptr<std::size_t> waiters) : waiters_(std::move(waiters)) {
    ++*waiters_;
  }
  ~WaiterGuard() { --*waiters_; }
  WaiterGuard(const WaiterGuard&) = delete;
  WaiterGuard& operator=(const WaiterGuard&) = delete;

 private:
  const std::shared_ptr<std::size_t> waiters_;
};

asio::awaitable<HttpResponse> Api::handle(HttpRequest request) {
  const std::string& path = request.target.path;
  const QueryParameters& query = request.target.query;
  const bool post = path == "/v1/reload";
  const std::string method = post ? "POST" : "GET";
  if (!post && path != "/v1/status" && path != "/v1/entries" && path != "/v1/names" &&
      path != "/v1/answers" && path != "/v1/wait") {
    co_return problem(404, "there is no " + path);
  }
  if (request.method != method) {
    HttpResponse refused = problem(405, path + " takes " + method);
    refused.headers.emplace_back("Allow", method);
    co_return refused;
  }
  if (path == "/v1/reload") co_return co_await reload(query);
  if (path == "/v1/wait") co_return co_await wait(query);
  if (path == "/v1/entries") {
    const auto map = query.find("map");
    if (map == query.end() || RowText::is_map_name(map->second)) co_return entries(query);
    if (sources_.declared.find(map->second) != nullptr) co_return co_await declared_entries(query);
    co_return problem(404, no_map(map->second, sources_.declared));
  }
  if (path == "/v1/names") co_return names(query);
  if (!query.empty()) co_return problem(400, path + " takes no parameters");
  co_return path == "/v1/answers" ? answers() : status();
}

// --- what is
// -------------------------------------------------------------------------------------------------------

HttpResponse Api::status() const {
  const engine::PolicyEngine& engine = sources_.engine;
  const reconciler::Progress progress = engine.loop().reconciler().progress();
  const Json missing = or_null(sources_.foreign_sockets_missing);
  return respond(
      {{"version", sources_.version},
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
         {"held_answers", engine.held_answers()},
         {"waiters", *waiters_}}},
       {"maps", describe_maps()},
       {"declared_maps", describe_declared(sources_.declared)},
       {"workloads", describe_workloads()},
       {"dns", describe_dns(sources_.dns())},
       {"names", describe_names(engine.names())},
       {"reconciler", describe_reconciler(engine.operations(), progress.resync)},
       {"spec", describe_spec()},
       {"store", describe_store(engine.store_health())},
       {"errors", describe_errors()},
       {"datapath", describe_datapath(sources_.datapath())},
       {"degraded", or_null(engine.bindings().degraded())},
       {"capabilities",
        {{"foreign_sockets", missing.is_null()}, {"foreign_sockets_missing", missing}}}});
}

Json Api::describe_maps() const {
  Json result = Json::array();
  for (const maps::MapStatus& map : sources_.maps()) {
    const double fill = engine::fill_of(map);
    result.push_back({{"name", map.info.name},
                      {"entries", map.entries},
                      {"max_entries", map.info.max_entries},
                      {"fill", fill},
                      {"nearly_full", fill >= engine::kNearlyFull},
                      {"written", map.written},
                      {"removed", map.removed}});
  }
  return result;
}

Json Api::describe_workloads() const {
  Json result = Json::array();
  const engine::PolicyEngine& engine = sources_.engine;
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
    const mg_counters counters = sources_.counters(id).value_or(mg_counters{});
    entry["denied"] = {{"connects", counters.denied_connects},
                       {"sends", counters.denied_sends},
                       {"packets", counters.denied_packets}};
    entry["audited"] = counters.audited;
    entry["steered"] = counters.steered;
    entry["events_dropped"] = counters.events_dropped;
    result.push_back(std::move(entry));
  }
  return result;
}

Json Api::describe_spec() const {
  const engine::ReloadResult& last = sources_.specs.last();
  const engine::SpecState state = sources_.specs.state();
  const bool blocked = state == engine::SpecState::kBlocked;
  return {{"file", sources_.specs.file().string()},
          {"state", engine::to_string(state)},
          {"revision", last.revision},
          {"phase", or_null(sources_.engine.phase())},
          {"error", or_null(blocked ? sources_.engine.blocked_by() : last.error)},
          {"errors", describe_faults(last.faults)}};
}

Json Api::describe_errors() const {
  const engine::PolicyEngine& engine = sources_.engine;
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

HttpResponse Api::entries(const QueryParameters& query) const {
  Parameters parameters(query);
  const auto map = parameters.text("map");
  const auto workload = parameters.text("workload");
  const auto state = parameters.text("state");
  const std::size_t limit = parameters.number("limit", 1, kMaxLimit).value_or(kDefaultLimit);
  const std::size_t from = parameters.number("from", 0, UINT32_MAX).value_or(0);
  if (state && *state != "pending" && *state != "done" && *state != "error") {
    parameters.fail("state must be pending, done or error");
  }
  if (const auto fault = parameters.fault()) return *fault;

  const engine::PolicyEngine& engine = sources_.engine;
  const RowText text(engine.allocations(), engine.options().indices);
  const auto now = Clock::now();
  Json rows = Json::array();
  const auto visit = [&](const maps::RowKey& key, const std::optional<maps::RowValue>& value,
                         reconciler::Revision revision, const reconciler::RowStatus& status) {
    if (state && *state != reconciler::to_string(status.state)) return;
    if (map && *map != text.map_name(key.map())) return;
    if (workload && *workload != text.workload(text.workload_of(key))) return;
    Json row = text.describe(key, value);
    row["revision"] = revision;
    row["state"] = reconciler::to_string(status.state);
    row["erased"] = status.erased;
    row["since_ns"] = to_ns(status.since);
    row["first_unreconciled"] =
        status.first_unreconciled ? Json(*status.first_unreconciled) : Json();
    row["error"] = describe_error(status.error, now);
    rows.push_back(std::move(row));
  };
  std::optional<std::size_t> next = from;
  while (next && rows.size() < limit && *next - from < kMaxPlaces) {
    next = engine.loop().reconciler().list(*next, std::min(limit - rows.size(), kScanSlice), visit);
  }
  return respond({{"epoch", engine.table().epoch().to_string()},
                  {"revision", engine.table().revision()},
                  {"next", next ? Json(*next) : Json()},
                  {"entries", std::move(rows)}});
}

asio::awaitable<HttpResponse> Api::declared_entries(QueryParameters query) {
  Parameters parameters(query);
  const engine::DeclaredMaps::Entry* entry =
      sources_.declared.find(parameters.text("map").value_or(""));
  const auto state = parameters.text("state");
  const auto from = parameters.text("from");
  const std::size_t limit = parameters.number("limit", 1, kMaxLimit).value_or(kDefaultLimit);
  const auto place = state && from ? parse_number<std::uint32_t>(*from) : 0;
  if (!place) parameters.fail("from must be a number");
  if (state && *state != "pending" && *state != "done" && *state != "error") {
    parameters.fail("state must be pending, done or error");
  }
  if (const auto fault = parameters.fault()) co_return *fault;
  if (state) co_return respond(describe_declared_rows(*entry, *state, *place, limit));
  if (!entry->map)
    co_return problem(409, "the map is " + std::string(engine::to_string(entry->state())));

  // By its pin: what others find there. Copies, because the next reload may come in between.
  const schema::MapLayouts layouts = entry->map->layouts();
  Json body = {{"map", entry->spec.name}, {"pin", entry->spec.pin}};
  const auto map = maps::Map::open_pin(entry->spec.pin);
  if (!map) co_return problem(500, map.error().text());
  if (map->info().key_size != layouts.key.size || map->info().value_size != layouts.value.size)
    co_return problem(409, "another kind of map is pinned at " + entry->spec.pin);
  const auto page = read_map_page(sources_.map_calls, *map, from.value_or(""), limit);
  if (!page) co_return problem(409, page.error());
  Json entries = Json::array();
  for (const MapEntry& found : page->entries) {
    Json& shown = entries.emplace_back(Json{{"key", schema::decode(layouts.key, found.key)}});
    if (found.values.size() == 1) {
      shown["value"] = schema::decode(layouts.value, found.values.front());
    } else {
      for (const auto& value : found.values)
        shown["cpu_values"].push_back(schema::decode(layouts.value, value));
    }
    if (entries.size() % kDecodeSlice == 0)
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  body["next"] = page->next ? Json(*page->next) : Json();
  body["entries"] = std::move(entries);
  co_return respond(body);
}

HttpResponse Api::names(const QueryParameters& query) const {
  Parameters parameters(query);
  const auto workload = parameters.text("workload");
  const std::size_t limit = parameters.number("limit", 1, kMaxLimit).value_or(kDefaultLimit);
  const std::size_t from = parameters.number("from", 0, UINT32_MAX).value_or(0);
  if (const auto fault = parameters.fault()) return *fault;

  const engine::PolicyEngine& engine = sources_.engine;
  const RowText text(engine.allocations(), engine.options().indices);
  const auto now = Clock::now();
  std::size_t place = 0;
  Json names = Json::array();
  engine.names().for_each([&](const dns::CachedAddress& entry) {
    if (place++ < from || names.size() >= limit) return;
    const std::string owner = text.workload(entry.workload);
    if (workload && *workload != owner) return;
    names.push_back(
        {{"workload", owner},
         {"name", entry.name},
         {"address", entry.address.to_string()},
         {"ports", text.port_sets(entry.workload, entry.port_sets)},
         {"expires_seconds",
          std::chrono::duration_cast<std::chrono::seconds>(entry.expires - now).count()}});
  });
  const bool more = names.size() >= limit && from + limit < place;
  return respond({{"next", more ? Json(from + limit) : Json()}, {"names", std::move(names)}});
}

HttpResponse Api::answers() const {
  Json answers = Json::array();
  for (const engine::AnswerTrace& trace : sources_.engine.answers().answers()) {
    Json addresses = Json::array();
    for (const policy::IpAddress& address : trace.addresses)
      addresses.push_back(address.to_string());
    answers.push_back({{"workload", trace.workload},
                       {"name", trace.name},
                       {"type", describe_type(trace.type)},
                       {"addresses", std::move(addresses)},
                       {"revision", trace.hold.revision},
                       {"outcome", dns::to_string(trace.hold.outcome)},
                       {"released", trace.released},
                       {"query_arrived_ns", to_ns_or_null(trace.query_arrived)},
                       {"upstream_answered_ns", to_ns_or_null(trace.upstream_answered)},
                       {"committed_ns", to_ns_or_null(trace.hold.committed)},
                       {"realised_ns", to_ns_or_null(trace.hold.realised)},
                       {"sent_ns", to_ns_or_null(trace.answer_sent)}});
  }
  return respond({{"answers", std::move(answers)}});
}

// --- what waits
// ----------------------------------------------------------------------------------------------------

asio::awaitable<HttpResponse> Api::wait(QueryParameters query) {
  Parameters parameters(query);
  engine::PolicyEngine& engine = sources_.engine;
  const auto revision = parameters.number("revision", 0, UINT64_MAX);
  const milliseconds timeout = parameters.timeout();
  std::optional<reconciler::Epoch> epoch = engine.table().epoch();
  if (const auto text = parameters.text("epoch")) epoch = reconciler::Epoch::parse(*text);
  if (!epoch) parameters.fail("epoch must be a UUID");
  if (!revision) parameters.fail("revision is missing");
  if (const auto fault = parameters.fault()) co_return *fault;
  if (*waiters_ >= kMaxWaiters) co_return problem(503, "too many requests wait");

  const WaiterGuard guard(waiters_);
  const auto gate =
      co_await engine.loop().revision_realised(*epoch, *revision, Clock::now() + timeout);
  if (!gate) co_return problem_of(gate.error());
  if (gate->outcome == reconciler::GateOutcome::kShuttingDown)
    co_return problem(503, "the daemon ends");
  const bool timed_out = gate->outcome == reconciler::GateOutcome::kTimedOut;
  co_return respond({{"outcome", reconciler::to_string(gate->outcome)},
                     {"epoch", epoch->to_string()},
                     {"revision", *revision},
                     {"lowest_unreconciled", engine.loop().reconciler().lowest_unreconciled()},
                     {"error", gate->error ? Json(gate->error->text) : Json()}},
                    timed_out ? 202 : 200);
}

asio::awaitable<HttpResponse> Api::reload(QueryParameters query) {
  Parameters parameters(query);
  const milliseconds timeout = parameters.timeout();
  if (const auto fault = parameters.fault()) co_return *fault;
  if (*waiters_ >= kMaxWaiters) co_return problem(503, "too many requests wait");

  // The reload goes on when the client goes away or its time is over.
  struct Pending {
    explicit Pending(const asio::any_io_executor& executor) : timer(executor) {}
    asio::steady_timer timer;
    std::optional<engine::ReloadResult> result;
  };
  const WaiterGuard guard(waiters_);
  const auto pending = std::make_shared<Pending>(co_await asio::this_coro::executor);
  pending->timer.expires_after(timeout);
  sources_.specs.reload([pending](const engine::ReloadResult& result) {
    pending->result = result;
    pending->timer.cancel();
  });
  if (!pending->result) co_await pending->timer.async_wait(asio::as_tuple(asio::use_awaitable));
  if (!pending->result)
    co_return respond({{"state", engine::to_string(sources_.specs.state())}, {"revision", nullptr}},
                      202);
  const engine::ReloadResult& result = *pending->result;
  switch (result.outcome) {
    case engine::ApplyOutcome::kApplied:
      co_return respond({{"state", "applied"}, {"revision", result.revision}});
    case engine::ApplyOutcome::kSuperseded:
      co_return problem(409, "a newer reload took its place");
    case engine::ApplyOutcome::kRefused:
    case engine::ApplyOutcome::kFailed:
      break;
  }
  HttpResponse refused = problem(422, result.error);
  Json body = Json::parse(refused.body);
  body["errors"] = describe_faults(result.faults);
  refused.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  co_return refused;
}

}  // namespace mapgate::control
