// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/spec_controller.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace mapgate::engine::test {
namespace {

class SpecControllerTest : public EngineTest {
 protected:
  void SetUp() override {
    restart();
    declared = std::make_unique<DeclaredMaps>(
        DeclaredMap::Environment{io, map_calls, *log, {}, [] { return reconciler::Epoch{}; }},
        DeclaredMaps::Options{.spec_file = directory_ / "spec.yaml",
                              .own_folder = directory_ / "bpf"});
    controller =
        std::make_unique<SpecController>(io, *engine, *declared, directory_ / "spec.yaml", *log);
  }
  void TearDown() override { io.restart(); }

  void write(const std::string& text) const { std::ofstream(directory_ / "spec.yaml") << text; }
  [[nodiscard]] static std::string document(const std::string& workloads) {
    return "formatVersion: 1\npolicy:\n  workloads:\n" + workloads;
  }
  ReloadResult start() {
    policy::Spec spec = parse(web("{matchName: a.example.com}"));
    std::optional<ReloadResult> result;
    controller->start(std::move(spec), [&](const ReloadResult& outcome) { result = outcome; });
    EXPECT_TRUE(run_until([&] { return result.has_value(); }));
    return result.value_or(ReloadResult{});
  }
  ReloadResult reload() {
    std::optional<ReloadResult> result;
    controller->reload([&](const ReloadResult& outcome) { result = outcome; });
    EXPECT_TRUE(run_until([&] { return result.has_value(); }));
    return result.value_or(ReloadResult{});
  }

  maps::KernelMapCalls map_calls;
  std::unique_ptr<DeclaredMaps> declared;
  std::unique_ptr<SpecController> controller;
};

TEST_F(SpecControllerTest, TheFirstSpecIsApplied) {
  EXPECT_EQ(controller->state(), SpecState::kNone);
  EXPECT_EQ(start().outcome, ApplyOutcome::kApplied);
  EXPECT_EQ(controller->state(), SpecState::kApplied);
}

TEST_F(SpecControllerTest, AReloadReadsTheFileAgain) {
  start();
  write(document(web("{matchName: b.example.com}")));
  EXPECT_EQ(reload().outcome, ApplyOutcome::kApplied);
  EXPECT_TRUE(engine->judge(1, "b.example.com").may_resolve);
  EXPECT_FALSE(engine->judge(1, "a.example.com").may_resolve);
}

TEST_F(SpecControllerTest, ABadFileChangesNothingAndEveryFaultIsKept) {
  start();
  const std::size_t operations = journal.size();
  write(document("    - name: web\n      selector: {cgroup: web}\n      mode: strict\n"));
  const ReloadResult result = reload();
  EXPECT_EQ(result.outcome, ApplyOutcome::kRefused);
  EXPECT_EQ(result.faults.size(), 2U);
  EXPECT_THAT(result.error, testing::HasSubstr("spec.yaml:"));
  EXPECT_EQ(controller->state(), SpecState::kRejected);
  EXPECT_EQ(journal.size(), operations);
  EXPECT_TRUE(engine->judge(1, "a.example.com").may_resolve);
}

TEST_F(SpecControllerTest, AMissingFileChangesNothing) {
  start();
  EXPECT_EQ(reload().outcome, ApplyOutcome::kRefused);
  EXPECT_EQ(controller->state(), SpecState::kRejected);
  EXPECT_TRUE(engine->judge(1, "a.example.com").may_resolve);
}

TEST_F(SpecControllerTest, AGoodFileAfterABadOneEndsTheRejection) {
  start();
  write("nonsense");
  reload();
  write(document(web("{matchName: b.example.com}")));
  reload();
  EXPECT_EQ(controller->state(), SpecState::kApplied);
  EXPECT_TRUE(controller->last().error.empty());
}

}  // namespace
}  // namespace mapgate::engine::test
