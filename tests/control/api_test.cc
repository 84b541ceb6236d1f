// SPDX-License-Identifier: Apache-2.0
// The API over a real socket, on an engine with fake maps.
#include "agent/control/api.h"

#include <chrono>
#include <fstream>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/control/http_client.h"
#include "agent/control/http_server.h"
#include "tests/engine/engine_fixture.h"

namespace mapgate::control {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class ApiTest : public engine::test::EngineTest {
 protected:
  void SetUp() override {
    make_cgroup("web");
    restart();
    write(web("{matchName: api.example.com}"));
    declared = std::make_unique<engine::DeclaredMaps>(
        engine::DeclaredMap::Environment{
            io, map_calls, *log, {}, [] { return reconciler::Epoch{}; }},
        engine::DeclaredMaps::Options{.spec_file = directory_ / "spec.yaml",
                                      .own_folder = directory_ / "bpf"});
    specs = std::make_unique<engine::SpecController>(io, *engine, *declared,
                                                     directory_ / "spec.yaml", *log);
    policy::Spec spec = parse(web("{matchName: api.example.com}"));
    bool started = false;
    specs->start(std::move(spec), [&](const engine::ReloadResult&) { started = true; });
    ASSERT_TRUE(run_until([&] { return started; }));
    api = std::make_unique<Api>(
        ApiSources{.engine = *engine,
                   .specs = *specs,
                   .declared = *declared,
                   .map_calls = map_calls,
                   .maps = [] { return std::vector{map_status()}; },
                   .dns = [] { return dns::ProxyCounters{}; },
                   .counters = [](engine::WorkloadId) { return mg_counters{}; },
                   .datapath = [] { return datapath_health(); },
                   .networks = [] { return engine::NetworkStatus(); },
                   .foreign_sockets_missing = "",
                   .version = "test"});
    auto listening =
        HttpServer::listen(io.get_executor(), directory_ / "control.sock", {},
                           [this](HttpRequest request) { return api->handle(std::move(request)); });
    ASSERT_TRUE(listening) << listening.error();
    server = std::move(*listening);
  }
  void TearDown() override {
    server.reset();
    run_for(milliseconds(10));  // what still waits ends
  }

  static engine::DatapathHealth datapath_health() {
    return {.inspections = 9,
            .repaired = 3,
            .last_repair = "a pin was removed: pinned again",
            .problems = {"map mg_counters is frozen"}};
  }
  static maps::MapStatus map_status() {
    maps::MapStatus status;
    status.info.name = "mg_addresses";
    status.info.max_entries = 64;
    status.entries = 16;
    return status;
  }
  void write(const std::string& workloads) const {
    std::ofstream(directory_ / "spec.yaml") << "formatVersion: 1\npolicy:\n  workloads:\n"
                                            << workloads;
  }
  void learn(const std::string& address) {
    const auto answer = hold("api.example.com", {address});
    ASSERT_TRUE(run_until([&] { return answer->result.has_value(); }));
  }

  struct Reply {
    unsigned status = 0;
    std::string content_type;
    json body;
  };
  std::future<std::expected<HttpResponse, std::string>> begin(
      const std::string& method, const std::string& target,
      milliseconds timeout = milliseconds(5000)) {
    return std::async(std::launch::async, [this, method, target, timeout] {
      return http_request(directory_ / "control.sock", method, target, timeout);
    });
  }
  Reply finish(std::future<std::expected<HttpResponse, std::string>> future) {
    EXPECT_TRUE(
        run_until([&] { return future.wait_for(milliseconds(0)) == std::future_status::ready; }));
    const auto response = future.get();
    if (!response) {
      ADD_FAILURE() << response.error();
      return {};
    }
    return {response->status, response->content_type, json::parse(response->body)};
  }
  Reply get(const std::string& target) { return finish(begin("GET", target)); }
  Reply post(const std::string& target) { return finish(begin("POST", target)); }
  void refuse_addresses() {
    maps.fail = [](const std::string& operation) {
      return operation.starts_with("put mg_addresses")
                 ? std::optional(reconciler::ErrorClass::kCapacity)
                 : std::nullopt;
    };
  }

  maps::KernelMapCalls map_calls;
  std::unique_ptr<engine::DeclaredMaps> declared;
  std::unique_ptr<engine::SpecController> specs;
  std::unique_ptr<Api> api;
  std::unique_ptr<HttpServer> server;
};

TEST_F(ApiTest, StatusTellsOfTheWholeDaemon) {
  const Reply reply = get("/v1/status");
  EXPECT_EQ(reply.status, 200U);
  const json& body = reply.body;
  EXPECT_EQ(body["epoch"], engine->table().epoch().to_string());
  EXPECT_EQ(body["revision"], engine->table().revision());
  EXPECT_EQ(body["lowest_unreconciled"], engine->table().revision() + 1);
  EXPECT_EQ(body["rows"]["error"], 0);
  EXPECT_EQ(body["rows"]["done"], maps.contents().size());
  EXPECT_EQ(body["maps"][0]["name"], "mg_addresses");
  EXPECT_EQ(body["maps"][0]["fill"], 0.25);
  EXPECT_EQ(body["maps"][0]["nearly_full"], false);
  EXPECT_EQ(body["datapath"]["repaired"], 3);
  EXPECT_EQ(body["datapath"]["last_repair"], "a pin was removed: pinned again");
  EXPECT_EQ(body["datapath"]["problems"], json::array({"map mg_counters is frozen"}));
  EXPECT_EQ(body["workloads"][0]["name"], "web");
  EXPECT_EQ(body["workloads"][0]["attached"], true);
  EXPECT_EQ(body["workloads"][0]["state"], "enforced");
  EXPECT_EQ(body["spec"]["state"], "applied");
  EXPECT_EQ(body["errors"], json::array());
}

TEST_F(ApiTest, RowsOfAMapThatIsFullSaySoAndNoOthersDo) {
  refuse_addresses();
  hold("api.example.com", {"192.0.2.1"});
  ASSERT_TRUE(run_until([&] { return engine->loop().reconciler().progress().parked == 1; }));
  const json status = get("/v1/status").body;
  ASSERT_EQ(status["errors"].size(), 1U);
  EXPECT_EQ(status["errors"][0]["key"], "192.0.2.1");
  EXPECT_THAT(status["errors"][0]["error"].get<std::string>(), testing::HasSubstr("map full"));
  const json entries = get("/v1/entries").body["entries"];
  EXPECT_GT(entries.size(), 1U);
  for (const json& row : entries) {
    const bool full =
        row["error"].is_object() && row["error"]["text"].get<std::string>().contains("map full");
    EXPECT_EQ(full, row["map"] == "mg_addresses") << row;
  }
}

TEST_F(ApiTest, EntriesCanBeFilteredAndAreReadable) {
  learn("192.0.2.1");
  const Reply reply = get("/v1/entries?map=mg_addresses&workload=web&state=done");
  ASSERT_EQ(reply.body["entries"].size(), 1U);
  const json& row = reply.body["entries"][0];
  EXPECT_EQ(row["address"], "192.0.2.1");
  EXPECT_EQ(row["ports"], json::array({"tcp:443"}));
  EXPECT_EQ(row["erased"], false);
  EXPECT_EQ(row["error"], nullptr);
  EXPECT_EQ(get("/v1/entries?map=mg_addresses&workload=other").body["entries"].size(), 0U);
  EXPECT_EQ(get("/v1/entries?map=mg_addresses&state=error").body["entries"].size(), 0U);
}

TEST_F(ApiTest, DeletionsThatAreNotDoneAreListed) {
  learn("192.0.2.1");
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("erase") ? std::optional(reconciler::ErrorClass::kTransient)
                                          : std::nullopt;
  };
  write(web("{matchName: other.example.com}"));
  auto reload = begin("POST", "/v1/reload");
  ASSERT_TRUE(run_until([&] { return engine->loop().reconciler().progress().errors > 0; }));
  const json rows = get("/v1/entries?map=mg_addresses").body["entries"];
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["erased"], true);
  EXPECT_EQ(rows[0]["state"], "error");
  EXPECT_FALSE(rows[0].contains("ports"));
  maps.fail = nullptr;
  EXPECT_EQ(finish(std::move(reload)).status, 200U);
}

TEST_F(ApiTest, EntriesComeInPages) {
  for (int i = 1; i <= 5; ++i) learn("192.0.2." + std::to_string(i));
  std::vector<std::string> addresses;
  std::string from = "0";
  for (int pages = 0; pages < 100; ++pages) {
    const json body = get("/v1/entries?map=mg_addresses&limit=2&from=" + from).body;
    EXPECT_LE(body["entries"].size(), 2U);
    for (const json& row : body["entries"]) addresses.push_back(row["address"]);
    if (body["next"].is_null()) break;
    from = std::to_string(body["next"].get<std::uint64_t>());
  }
  EXPECT_THAT(addresses, testing::UnorderedElementsAre("192.0.2.1", "192.0.2.2", "192.0.2.3",
                                                       "192.0.2.4", "192.0.2.5"));
}

TEST_F(ApiTest, NamesComeInPages) {
  for (int i = 1; i <= 3; ++i) learn("192.0.2." + std::to_string(i));
  const json first = get("/v1/names?limit=2").body;
  ASSERT_EQ(first["names"].size(), 2U);
  EXPECT_EQ(first["names"][0]["name"], "api.example.com");
  ASSERT_EQ(first["next"], 2);
  const json second = get("/v1/names?limit=2&from=2").body;
  EXPECT_EQ(second["names"].size(), 1U);
  EXPECT_EQ(second["next"], nullptr);
}

TEST_F(ApiTest, PagesOfOneWorkloadsNamesLeaveOutNoneAndRepeatNone) {
  std::string other = web("{matchName: api.example.com}");
  for (std::size_t at = 0; (at = other.find("web", at)) != std::string::npos; ++at)
    other.replace(at, 3, "app");
  make_cgroup("app");
  write(web("{matchName: api.example.com}") + other);
  ASSERT_EQ(post("/v1/reload").status, 200U);
  std::vector<std::shared_ptr<Answer>> answers;
  for (unsigned i = 1; i <= 8; ++i)
    answers.push_back(hold("api.example.com", {"192.0.2." + std::to_string(i)},
                           std::chrono::seconds(60), i % 2 + 1));
  ASSERT_TRUE(run_until([&] { return answers.back()->result.has_value(); }));
  std::vector<std::string> addresses;
  std::string from = "0";
  for (int pages = 0; pages < 20; ++pages) {
    const json body = get("/v1/names?workload=app&limit=1&from=" + from).body;
    EXPECT_LE(body["names"].size(), 1U);
    for (const json& name : body["names"]) addresses.push_back(name["address"]);
    if (body["next"].is_null()) break;
    from = std::to_string(body["next"].get<std::uint64_t>());
  }
  EXPECT_THAT(addresses,
              testing::UnorderedElementsAre("192.0.2.1", "192.0.2.3", "192.0.2.5", "192.0.2.7"));
}

TEST_F(ApiTest, AnswersShowTheirTimes) {
  dns::AnswerRecord record;
  record.workload = 1;
  record.name = "api.example.com";
  record.type = 28;
  record.hold.revision = 7;
  record.query_arrived = dns::TimePoint(std::chrono::nanoseconds(5));
  engine->answered(record);
  const json answer = get("/v1/answers").body["answers"][0];
  EXPECT_EQ(answer["workload"], "web");
  EXPECT_EQ(answer["type"], "AAAA");
  EXPECT_EQ(answer["revision"], 7);
  EXPECT_EQ(answer["outcome"], "opened");
  EXPECT_EQ(answer["query_arrived_ns"], 5);
  EXPECT_EQ(answer["realised_ns"], nullptr);
}

TEST_F(ApiTest, WaitAnswersWhenTheRevisionIsRealised) {
  const auto reply = get("/v1/wait?revision=" + std::to_string(engine->table().revision()));
  EXPECT_EQ(reply.status, 200U);
  EXPECT_EQ(reply.body["outcome"], "opened");
}

TEST_F(ApiTest, WaitThatIsNotRealisedInTimeIs202) {
  refuse_addresses();
  hold("api.example.com", {"192.0.2.1"});
  const auto reply =
      get("/v1/wait?timeout=0.1&revision=" + std::to_string(engine->table().revision()));
  EXPECT_EQ(reply.status, 202U);
  EXPECT_EQ(reply.body["outcome"], "timed out");
}

TEST_F(ApiTest, WaitForWhatDoesNotExistIsRefused) {
  EXPECT_EQ(get("/v1/wait?revision=99999").status, 404U);
  EXPECT_EQ(get("/v1/wait?revision=1&epoch=00000000-0000-4000-8000-000000000000").status, 409U);
  EXPECT_EQ(get("/v1/wait?revision=1&epoch=nonsense").status, 400U);
  EXPECT_EQ(get("/v1/wait?revision=-1").status, 400U);
  EXPECT_EQ(get("/v1/wait").status, 400U);
  EXPECT_EQ(get("/v1/wait?revision=1&timeout=601").status, 400U);
}

TEST_F(ApiTest, AClientThatGoesAwayFreesItsGate) {
  refuse_addresses();
  hold("api.example.com", {"192.0.2.1"});
  const std::size_t before = engine->loop().reconciler().progress().open_gates;
  auto wait =
      begin("GET", "/v1/wait?timeout=600&revision=" + std::to_string(engine->table().revision()),
            milliseconds(100));
  ASSERT_TRUE(
      run_until([&] { return engine->loop().reconciler().progress().open_gates == before + 1; }));
  ASSERT_TRUE(
      run_until([&] { return wait.wait_for(milliseconds(0)) == std::future_status::ready; }));
  EXPECT_FALSE(wait.get()) << "its client gave up";
  EXPECT_TRUE(run_until([&] { return engine->loop().reconciler().progress().open_gates <= before; },
                        milliseconds(500)));
}

TEST_F(ApiTest, ManyWaitersAreAnsweredTogether) {
  refuse_addresses();
  hold("api.example.com", {"192.0.2.1"});
  std::vector<std::future<std::expected<HttpResponse, std::string>>> waiting;
  for (int i = 0; i < 50; ++i) {
    waiting.push_back(
        begin("GET", "/v1/wait?timeout=60&revision=" + std::to_string(engine->table().revision())));
  }
  ASSERT_TRUE(run_until([&] { return engine->loop().reconciler().progress().open_gates >= 50; }));
  maps.fail = nullptr;
  for (auto& future : waiting) EXPECT_EQ(finish(std::move(future)).body["outcome"], "opened");
}

TEST_F(ApiTest, WaitersAreToldWhenTheDaemonEnds) {
  refuse_addresses();
  hold("api.example.com", {"192.0.2.1"});
  auto wait =
      begin("GET", "/v1/wait?timeout=60&revision=" + std::to_string(engine->table().revision()));
  ASSERT_TRUE(run_until([&] { return engine->loop().reconciler().progress().open_gates >= 2; }));
  engine->shut_down();
  EXPECT_EQ(finish(std::move(wait)).status, 503U);
}

TEST_F(ApiTest, ReloadAnswersWhenTheSpecIsInForce) {
  write(web("{matchName: other.example.com}"));
  const Reply reply = post("/v1/reload");
  EXPECT_EQ(reply.status, 200U);
  EXPECT_EQ(reply.body["state"], "applied");
  EXPECT_TRUE(engine->judge(1, "other.example.com").may_resolve);
}

TEST_F(ApiTest, ReloadOfABadSpecTellsEveryFault) {
  write("    - name: web\n      selector: {cgroup: web}\n      mode: strict\n");
  const Reply reply = post("/v1/reload");
  EXPECT_EQ(reply.status, 422U);
  EXPECT_EQ(reply.content_type, "application/problem+json");
  EXPECT_EQ(reply.body["errors"].size(), 2U);
  EXPECT_EQ(reply.body["errors"][0]["pointer"], "/policy/workloads/0/selector/cgroup");
  EXPECT_EQ(get("/v1/status").body["spec"]["state"], "rejected");
}

TEST_F(ApiTest, ReloadThatTakesTooLongIs202AndGoesOn) {
  maps.fail = [](const std::string& operation) {
    return operation.starts_with("put mg_ports") ? std::optional(reconciler::ErrorClass::kTransient)
                                                 : std::nullopt;
  };
  write(web("{matchName: api.example.com}", "80"));
  EXPECT_EQ(post("/v1/reload?timeout=0.05").status, 202U);
  ASSERT_TRUE(run_until([&] { return specs->state() == engine::SpecState::kBlocked; }));
  EXPECT_NE(get("/v1/status").body["spec"]["error"], nullptr);
  maps.fail = nullptr;
  EXPECT_TRUE(run_until([&] { return specs->state() == engine::SpecState::kApplied; }));
}

TEST_F(ApiTest, WhatIsNotThereIsRefused) {
  EXPECT_EQ(get("/v1/nothing").status, 404U);
  EXPECT_EQ(get("/").status, 404U);
  EXPECT_EQ(post("/v1/status").status, 405U);
  EXPECT_EQ(get("/v1/reload").status, 405U);
  EXPECT_EQ(get("/v1/status?what=1").status, 400U);
  EXPECT_EQ(get("/v1/entries?bogus=1").status, 400U);
  EXPECT_EQ(get("/v1/entries?state=bogus").status, 400U);
  EXPECT_EQ(get("/v1/entries?limit=0").status, 400U);
  EXPECT_EQ(get("/v1/entries?limit=100000").status, 400U);
}

}  // namespace
}  // namespace mapgate::control
