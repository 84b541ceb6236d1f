// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/engine_fixture.h"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include <spdlog/sinks/null_sink.h>
#include <boost/asio/co_spawn.hpp>

#include "bpf/abi.h"

namespace mapgate::engine::test {

namespace asio = boost::asio;

namespace {

constexpr policy::MapIndices kIndices{.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3};

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string address_text(const std::uint8_t* bytes) {
  policy::IpAddress::Bytes copy;
  std::copy_n(bytes, copy.size(), copy.begin());
  return policy::IpAddress(copy).to_string();
}

std::string describe(const maps::RowKey& key) {
  if (key.map() == kIndices.addresses) {
    const auto address = key.as<mg_address_key>();
    return "mg_addresses " + std::to_string(address.workload) + " " + address_text(address.address);
  }
  if (key.map() == kIndices.prefixes) {
    const auto prefix = key.as<mg_prefix_key>();
    return "mg_prefixes " + std::to_string(prefix.workload) + " " + address_text(prefix.address) +
           "/" + std::to_string(prefix.prefixlen - 32);
  }
  if (key.map() == kIndices.ports) return "mg_ports " + hex(key.bytes());
  return "mg_workloads " + std::to_string(key.as<std::uint32_t>());
}

std::uint64_t number_of(const maps::RowValue& value) {
  std::uint64_t number = 0;
  std::memcpy(&number, value.data(), std::min(value.size(), sizeof number));
  return number;
}

}  // namespace

void FakeMaps::apply(std::span<const Operation> batch,
                     std::span<reconciler::OperationResult> results) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::string key = describe(batch[i].key);
    const std::string text = batch[i].value
                                 ? "put " + key + " = " + std::to_string(number_of(*batch[i].value))
                                 : "erase " + key;
    results[i].target = batch[i].key.map();
    if (const auto failure = fail ? fail(text) : std::nullopt) {
      results[i].error = reconciler::OperationError{*failure, EIO, "refused: " + text};
      continue;
    }
    journal_.push_back(text);
    if (batch[i].value) {
      contents_.insert_or_assign(key, std::pair(batch[i].key, *batch[i].value));
    } else {
      results[i].freed = contents_.erase(key) > 0;
    }
  }
}

std::expected<void, reconciler::OperationError> FakeMaps::scan_begin() {
  return {};
}

std::expected<bool, reconciler::OperationError> FakeMaps::scan_next(
    std::size_t /*max*/, std::vector<std::pair<maps::RowKey, maps::RowValue>>& entries) {
  for (const auto& [text, entry] : contents_) entries.push_back(entry);
  return true;
}

std::uint64_t FakeMaps::value(const std::string& key) const {
  const auto entry = contents_.find(key);
  return entry == contents_.end() ? 0 : number_of(entry->second.second);
}

std::expected<workload::CgroupId, std::string> FakeEnforcement::attach(const std::string& path,
                                                                       WorkloadId workload) {
  if (!failure.empty()) return std::unexpected(failure);
  const auto id = workload::cgroup_id(root_.native() + path);
  if (!id) return std::unexpected(id.error().message());
  journal_.push_back("attach " + path + " " + std::to_string(workload));
  attached_.insert_or_assign(*id, path);
  return *id;
}

std::expected<void, std::string> FakeEnforcement::detach(workload::CgroupId cgroup) {
  const auto entry = attached_.find(cgroup);
  if (entry == attached_.end()) return std::unexpected("not attached");
  journal_.push_back("detach " + entry->second);
  attached_.erase(entry);
  return {};
}

std::vector<AttachedCgroup> FakeEnforcement::attached() const {
  std::vector<AttachedCgroup> result;
  for (const auto& [cgroup, path] : attached_) result.push_back({cgroup, path});
  return result;
}

boost::asio::awaitable<std::expected<void, std::string>> FakeMapControl::resize(
    policy::MapSizes sizes) {
  if (!failure.empty()) co_return std::unexpected(failure);
  journal_.push_back("resize " + std::to_string(sizes.addresses) + " " +
                     std::to_string(sizes.prefixes) + " " + std::to_string(sizes.ports));
  co_return std::expected<void, std::string>();
}

std::expected<void, std::string> FakeMapControl::contents_complete() {
  journal_.push_back("contents complete");
  return {};
}

EngineTest::EngineTest()
    : directory_(std::filesystem::temp_directory_path() /
                 ("mapgate-engine-" + std::to_string(getpid()) + "-" +
                  std::to_string(std::random_device()()))),
      log(std::make_unique<spdlog::logger>("test",
                                           std::make_shared<spdlog::sinks::null_sink_st>())) {
  std::filesystem::create_directories(cgroups());
  std::filesystem::create_directories(directory_ / "state");
  enforcement = std::make_unique<FakeEnforcement>(journal, cgroups());
}

EngineTest::~EngineTest() {
  engine.reset();
  bindings.reset();
  store.reset();
  std::filesystem::remove_all(directory_);
}

policy::Spec EngineTest::parse(const std::string& workloads) {
  const std::string text = "formatVersion: 1\npolicy:\n  workloads:\n" + workloads;
  auto spec = policy::parse_spec(text, policy::SpecFormat::kYaml, "test.yaml");
  if (spec) return std::move(*spec);
  for (const auto& fault : spec.error()) ADD_FAILURE() << fault.to_string();
  return {};
}

std::string EngineTest::web(const std::string& names, const std::string& port) {
  return "    - name: web\n      selector: {cgroup: /web}\n      egress:\n        - toFQDNs: [" +
         names + "]\n          toPorts: [{port: " + port + ", protocol: TCP}]\n";
}

asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>> FakeConnections::list() {
  if (before_list) before_list();
  if (!list_failure.empty()) co_return std::unexpected(list_failure);
  co_return connections;
}

Connections::PortSets FakeConnections::port_sets(const OpenConnection& connection) {
  const std::string address = policy::IpAddress(connection.socket.remote.address).to_string();
  return {maps_.value("mg_addresses " + std::to_string(connection.workload) + " " + address),
          port_sets_of_port};
}

asio::awaitable<Connections::Results> FakeConnections::end(std::vector<OpenConnection> ended) {
  Results results;
  for (const OpenConnection& connection : ended) {
    journal_.push_back("end " + policy::IpAddress(connection.socket.remote.address).to_string());
    if (end_failure) {
      results.emplace_back(std::unexpected(end_failure));
      continue;
    }
    std::erase_if(connections, [&](const OpenConnection& each) {
      return each.socket.cookie == connection.socket.cookie;
    });
    results.emplace_back();
  }
  co_return results;
}

void FakeConnections::add(const std::string& address) {
  sockets::Connection socket{.protocol = IPPROTO_TCP};
  socket.remote = {policy::IpAddress::parse(address).value().bytes(), 443};
  socket.cookie = next_cookie_++;
  connections.push_back({1, 0, socket});
}

void EngineTest::restart() {
  engine.reset();
  bindings.reset();
  store.reset();
  io.restart();
  io.poll();  // what the old one left in the loop
  store = std::move(state::Store::open(directory_ / "state").value());
  bindings =
      std::move(WorkloadBindings::create(io.get_executor(), cgroups(), *enforcement, *log).value());
  EngineOptions options{.indices = kIndices, .node = node, .reconciler = {}};
  options.reconciler.retry.max = std::chrono::milliseconds(100);
  engine = std::make_unique<PolicyEngine>(
      PolicyEngine::Environment{io, maps, map_control, *bindings, connections, *store,
                                system_resolvers, *log},
      reconciler::Epoch::from_random(1, 2), options);
}

ApplyResult EngineTest::start(policy::Spec spec) {
  if (!engine) restart();
  spec.node = node;
  std::optional<ApplyResult> result;
  boost::asio::co_spawn(
      io, engine->start(std::move(spec)),
      [&](const std::exception_ptr&, ApplyResult outcome) { result = std::move(outcome); });
  run_until([&] { return result.has_value(); });
  return result.value_or(ApplyResult{ApplyOutcome::kFailed, 0, "the test's time is over"});
}

std::shared_ptr<std::optional<ApplyResult>> EngineTest::begin_apply(policy::Spec spec) {
  spec.node = node;
  auto result = std::make_shared<std::optional<ApplyResult>>();
  boost::asio::co_spawn(
      io, engine->apply(std::move(spec)),
      [result](const std::exception_ptr&, ApplyResult outcome) { *result = std::move(outcome); });
  return result;
}

ApplyResult EngineTest::apply(policy::Spec spec) {
  const auto result = begin_apply(std::move(spec));
  run_until([&] { return result->has_value(); });
  return result->value_or(ApplyResult{ApplyOutcome::kFailed, 0, "the test's time is over"});
}

std::shared_ptr<EngineTest::Answer> EngineTest::hold(const std::string& name,
                                                     const std::vector<std::string>& addresses,
                                                     std::chrono::seconds ttl,
                                                     WorkloadId workload) {
  auto answer = std::make_shared<Answer>();
  std::vector<dns::LearnedAddress> learned;
  for (const std::string& address : addresses)
    learned.push_back({policy::IpAddress::parse(address).value(), ttl});
  engine->hold({workload, name, learned}, [answer](const dns::HoldResult& result) {
    EXPECT_FALSE(answer->result) << "decided twice";
    answer->result = result;
  });
  return answer;
}

bool EngineTest::run_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  io.restart();
  while (!done() && std::chrono::steady_clock::now() < end) {
    io.run_one_until(
        std::min(end, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
    if (io.stopped()) io.restart();
  }
  return done();
}

void EngineTest::run_for(std::chrono::milliseconds duration) {
  run_until([] { return false; }, duration);
}

std::size_t EngineTest::place(const std::string& entry) const {
  const auto found = std::ranges::find(journal, entry);
  EXPECT_NE(found, journal.end()) << entry << " is missing in " << testing::PrintToString(journal);
  return static_cast<std::size_t>(found - journal.begin());
}

}  // namespace mapgate::engine::test
