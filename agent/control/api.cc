// SPDX-License-Identifier: Apache-2.0
#include "agent/control/api.h"

#include <memory>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>

#include "agent/control/http_server.h"
#include "agent/control/map_reader.h"
#include "agent/control/map_text.h"
#include "agent/control/parameters.h"
#include "agent/control/row_text.h"
#include "agent/control/status_text.h"
#include "agent/dns/message.h"

namespace mapgate::control {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxRowsOfGate = 16;
constexpr std::size_t kDecodeSlice = 256;  // entries between two looks at the loop's other work

HttpResponse respond(const Json& body, unsigned status = 200) {
  // Names on the wire may hold bytes that are no UTF-8.
  return {status,
          "application/json",
          body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n",
          {}};
}

std::int64_t to_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
Json to_ns_or_null(Clock::time_point time) {
  return time == Clock::time_point{} ? Json() : Json(to_ns(time));
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

std::string no_map(const std::string& name, const engine::DeclaredMaps& declared) {
  std::string names;
  for (const auto& entry : declared.entries())
    names += (names.empty() ? "" : ", ") + entry->spec->name;
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
      path != "/v1/gates" && path != "/v1/answers" && path != "/v1/wait") {
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
  if (path == "/v1/gates") co_return gates(query);
  if (!query.empty()) co_return problem(400, path + " takes no parameters");
  if (path == "/v1/answers") co_return answers();
  co_return respond(describe_status(sources_, *waiters_));
}

// --- what is
// -------------------------------------------------------------------------------------------------------

HttpResponse Api::entries(const QueryParameters& query) const {
  Parameters parameters(query);
  const auto map = parameters.text("map");
  const auto workload = parameters.text("workload");
  const auto state = parameters.state();
  const std::size_t limit = parameters.limit();
  const std::size_t from = parameters.from();
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
  const auto next = list_rows(engine.loop().reconciler(), from, limit, rows, visit);
  return respond({{"epoch", engine.table().epoch().to_string()},
                  {"revision", engine.table().revision()},
                  {"next", next ? Json(*next) : Json()},
                  {"entries", std::move(rows)}});
}

asio::awaitable<HttpResponse> Api::declared_entries(QueryParameters query) {
  Parameters parameters(query);
  const engine::DeclaredMaps::Entry* entry =
      sources_.declared.find(parameters.text("map").value_or(""));
  const auto state = parameters.state();
  const std::size_t limit = parameters.limit();
  // Rows have places; the kernel's elements come after a key.
  const std::size_t place = state ? parameters.from() : 0;
  const auto key = state ? std::nullopt : parameters.text("from");
  if (const auto fault = parameters.fault()) co_return *fault;
  if (state) co_return respond(describe_declared_rows(*entry, *state, place, limit));
  if (!entry->map)
    co_return problem(409, "the map is " + std::string(engine::to_string(entry->state())) +
                               (entry->error.empty() ? "" : ": " + entry->error));

  // By its pin: what others find there. Copies, because the next reload may come in between.
  const engine::DeclaredTarget target = entry->map->declared_target();
  Json body = {{"map", entry->spec->name}, {"pin", entry->spec->pin}};
  const auto map = maps::Map::open_pin(entry->spec->pin);
  if (!map) co_return problem(500, map.error().text());
  if (map->info().type != target.info.type || map->info().key_size != target.info.key_size ||
      map->info().value_size != target.info.value_size)
    co_return problem(409, "another kind of map is pinned at " + entry->spec->pin);
  const auto page = read_map_page(sources_.map_calls, *map, key.value_or(""), limit);
  if (!page) co_return problem(409, page.error());
  Json entries = Json::array();
  for (const MapEntry& found : page->entries) {
    Json& shown = entries.emplace_back(Json{{"key", decode_key(target, found.key)}});
    if (found.values.size() == 1) {
      shown["value"] = decode_element(sources_.map_calls, target, found.values.front());
    } else {
      for (const auto& value : found.values)
        shown["cpu_values"].push_back(decode_value(target, value));
    }
    // Each inner map is read for itself.
    if (target.inner || entries.size() % kDecodeSlice == 0)
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  body["next"] = page->next ? Json(*page->next) : Json();
  body["entries"] = std::move(entries);
  co_return respond(body);
}

HttpResponse Api::names(const QueryParameters& query) const {
  Parameters parameters(query);
  const auto workload = parameters.text("workload");
  const std::size_t limit = parameters.limit();
  const std::size_t from = parameters.from();
  if (const auto fault = parameters.fault()) return *fault;

  const engine::PolicyEngine& engine = sources_.engine;
  const RowText text(engine.allocations(), engine.options().indices);
  const auto now = Clock::now();
  std::size_t place = 0;
  std::optional<std::size_t> next;
  Json names = Json::array();
  engine.names().for_each([&](const dns::CachedAddress& entry) {
    const std::size_t here = place++;
    if (here < from || next) return;
    const std::string owner = text.workload(entry.workload);
    if (workload && *workload != owner) return;
    if (names.size() >= limit) {
      next = here;
      return;
    }
    names.push_back(
        {{"workload", owner},
         {"name", entry.name},
         {"address", entry.address.to_string()},
         {"ports", text.port_sets(entry.workload, entry.port_sets)},
         {"expires_seconds",
          std::chrono::duration_cast<std::chrono::seconds>(entry.expires - now).count()}});
  });
  return respond({{"next", next ? Json(*next) : Json()}, {"names", std::move(names)}});
}

HttpResponse Api::gates(const QueryParameters& query) const {
  Parameters parameters(query);
  const auto workload = parameters.text("workload");
  const std::size_t limit = parameters.limit();
  const std::size_t from = parameters.from();
  if (const auto fault = parameters.fault()) return *fault;

  const engine::PolicyEngine& engine = sources_.engine;
  const RowText text(engine.allocations(), engine.options().indices);
  const auto now = Clock::now();
  const auto ms = [](Clock::duration duration) {
    return std::chrono::duration_cast<milliseconds>(duration).count();
  };
  std::size_t place = 0;
  std::optional<std::size_t> next;
  Json gates = Json::array();
  for (const engine::HeldAnswer& held : engine.held_answers()) {
    if (gates.size() == limit) {
      next = place;
      break;
    }
    if (place++ < from) continue;
    const std::string owner = text.workload(held.workload);
    if (workload && *workload != owner) continue;
    Json rows = Json::array();
    for (const maps::RowKey& key : held.rows) {
      const auto status = engine.loop().reconciler().status(key);
      if (!status || !status->first_unreconciled || rows.size() == kMaxRowsOfGate) continue;
      rows.push_back({{"map", text.map_name(key.map())},
                      {"key", text.key(key)},
                      {"state", reconciler::to_string(status->state)},
                      {"error", describe_error(status->error, now)}});
    }
    gates.push_back({{"workload", owner},
                     {"name", held.name},
                     {"held_ms", ms(now - held.since)},
                     {"deadline_ms", ms(held.deadline - now)},
                     {"rows", std::move(rows)}});
  }
  return respond({{"next", next ? Json(*next) : Json()}, {"gates", std::move(gates)}});
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
    co_return respond({{"state", engine::to_string(sources_.specs.state())},
                       {"revision", nullptr},
                       {"problems", Json::array()}},
                      202);
  const engine::ReloadResult& result = *pending->result;
  switch (result.outcome) {
    case engine::ApplyOutcome::kApplied:
      co_return respond(
          {{"state", "applied"}, {"revision", result.revision}, {"problems", result.problems}},
          result.problems.empty() ? 200 : 202);
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
