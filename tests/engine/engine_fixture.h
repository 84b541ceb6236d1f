// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <boost/asio/io_context.hpp>

#include "agent/engine/policy_engine.h"
#include "agent/engine/workload_bindings.h"
#include "agent/policy/spec.h"
#include "agent/state/store.h"

namespace mapgate::engine::test {

// What happened to the target and to cgroups, in order: "put mg_addresses web 192.0.2.1 = 1",
// "attach /web 1".
using Journal = std::vector<std::string>;

// The kernel's maps, in memory. They outlive the engine, as pinned maps do.
class FakeMaps final : public Operations {
 public:
  explicit FakeMaps(Journal& journal) : journal_(journal) {}

  void apply(std::span<const Operation> batch,
             std::span<reconciler::OperationResult> results) override;
  [[nodiscard]] std::expected<void, reconciler::OperationError> scan_begin() override;
  [[nodiscard]] std::expected<bool, reconciler::OperationError> scan_next(
      std::size_t max, std::vector<std::pair<maps::RowKey, maps::RowValue>>& entries) override;

  using Contents = std::map<std::string, std::pair<maps::RowKey, maps::RowValue>>;
  [[nodiscard]] const Contents& contents() const { return contents_; }
  void clear() { contents_.clear(); }
  // By the text that the journal has, less the verb: "mg_addresses 1 192.0.2.1". 0: it is not
  // there.
  [[nodiscard]] std::uint64_t value(const std::string& key) const;

  // Decides the fate of writes and deletes, by the journal's text; nothing: they succeed.
  std::function<std::optional<reconciler::ErrorClass>(const std::string& operation)> fail;

 private:
  Journal& journal_;
  Contents contents_;
};

class FakeEnforcement final : public Enforcement {
 public:
  FakeEnforcement(Journal& journal, std::filesystem::path root)
      : journal_(journal), root_(std::move(root)) {}

  [[nodiscard]] std::expected<workload::CgroupId, std::string> attach(const std::string& path,
                                                                      WorkloadId workload) override;
  [[nodiscard]] std::expected<void, std::string> detach(workload::CgroupId cgroup) override;
  void drop_dead() override {}
  [[nodiscard]] std::vector<AttachedCgroup> attached() const override;

  std::string failure;  // of attach(); empty: it succeeds

 private:
  Journal& journal_;
  const std::filesystem::path root_;
  std::map<workload::CgroupId, std::string> attached_;
};

// Sizes of maps, as numbers.
class FakeMapControl final : public MapControl {
 public:
  explicit FakeMapControl(Journal& journal) : journal_(journal) {}

  [[nodiscard]] boost::asio::awaitable<std::expected<void, std::string>> resize(
      policy::MapSizes sizes) override;
  [[nodiscard]] bool awaits_contents() const override { return awaits; }
  [[nodiscard]] std::expected<void, std::string> contents_complete() override;

  std::string failure;  // not empty: resize() fails with it
  bool awaits = false;

 private:
  Journal& journal_;
};

// Connections that are there until they are ended: "end 192.0.2.1".
class FakeConnections final : public Connections {
 public:
  FakeConnections(Journal& journal, const FakeMaps& maps) : journal_(journal), maps_(maps) {}

  [[nodiscard]] boost::asio::awaitable<std::expected<std::vector<OpenConnection>, std::string>>
  list() override;
  [[nodiscard]] PortSets port_sets(const OpenConnection& connection) override;
  [[nodiscard]] boost::asio::awaitable<Results> end(
      std::vector<OpenConnection> connections) override;

  // Of workload 1, to port 443.
  void add(const std::string& address);

  std::vector<OpenConnection> connections;
  std::uint64_t port_sets_of_port = ~std::uint64_t{0};
  std::function<void()> before_list;
  std::string list_failure;     // not empty: list() fails with it
  std::error_code end_failure;  // of end()

 private:
  Journal& journal_;
  const FakeMaps& maps_;
  std::uint64_t next_cookie_ = 1;
};

// An engine on fake maps and fake enforcement, a real store, and folders for cgroups.
class EngineTest : public testing::Test {
 protected:
  EngineTest();
  ~EngineTest() override;

  // A spec of workloads: `workloads` is YAML, indented as in a list at its top.
  [[nodiscard]] static policy::Spec parse(const std::string& workloads);
  // One workload "web" in /web, with one rule.
  [[nodiscard]] static std::string web(const std::string& names, const std::string& port = "443");

  void make_cgroup(const std::string& name) const {
    std::filesystem::create_directory(cgroups() / name);
  }
  [[nodiscard]] std::filesystem::path cgroups() const { return directory_ / "cgroups"; }

  // A new daemon on the same maps and state.
  void restart();
  [[nodiscard]] ApplyResult start(policy::Spec spec);
  [[nodiscard]] ApplyResult apply(policy::Spec spec);
  // Begins, and does not wait; the result comes later.
  std::shared_ptr<std::optional<ApplyResult>> begin_apply(policy::Spec spec);

  // Answers that an application waits for.
  struct Answer {
    std::optional<dns::HoldResult> result;
  };
  std::shared_ptr<Answer> hold(const std::string& name, const std::vector<std::string>& addresses,
                               std::chrono::seconds ttl = std::chrono::seconds(60),
                               WorkloadId workload = 1);

  // Runs the loop until `done`, or for `limit`; returns what `done` says then.
  bool run_until(const std::function<bool()>& done,
                 std::chrono::milliseconds limit = std::chrono::seconds(5));
  void run_for(std::chrono::milliseconds duration);
  // The places of what the journal has, in order; fails the test if one is missing.
  [[nodiscard]] std::size_t place(const std::string& entry) const;

  policy::NodeSettings node;
  boost::asio::io_context io;
  Journal journal;
  std::filesystem::path directory_;
  // What the node uses, for SystemResolvers.
  [[nodiscard]] std::filesystem::path resolv_conf() const { return directory_ / "resolv.conf"; }
  FakeMaps maps{journal};
  FakeMapControl map_control{journal};
  FakeConnections connections{journal, maps};
  std::unique_ptr<FakeEnforcement> enforcement;
  std::unique_ptr<spdlog::logger> log;
  std::unique_ptr<state::Store> store;
  std::unique_ptr<WorkloadBindings> bindings;
  dns::SystemResolvers system_resolvers{{resolv_conf()}};
  std::unique_ptr<PolicyEngine> engine;
};

}  // namespace mapgate::engine::test
