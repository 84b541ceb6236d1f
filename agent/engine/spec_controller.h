// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "agent/engine/declared_maps.h"
#include "agent/engine/policy_engine.h"
#include "agent/policy/spec.h"

namespace mapgate::engine {

enum class SpecState : std::uint8_t {
  kNone,      // none is in force yet
  kApplying,  // one is on its way
  kBlocked,   // it waits for rows that fail
  kApplied,
  kRejected,  // the newest one was refused, or the kernel refuses it: the one before is in force
};
[[nodiscard]] std::string_view to_string(SpecState state);

struct ReloadResult {
  ApplyOutcome outcome = ApplyOutcome::kRefused;
  reconciler::Revision revision = 0;
  std::string error;                      // one line; empty when applied or superseded
  std::vector<policy::SpecError> faults;  // of a file that does not parse
  std::vector<std::string> problems;      // of one in force: what the kernel does not have of it
};

// Brings the spec file into force, and remembers how that went. For the thread of `io`.
class SpecController {
 public:
  using Done = std::function<void(const ReloadResult&)>;

  // `engine`, `maps` and `log` outlive it.
  SpecController(boost::asio::io_context& io, PolicyEngine& engine, DeclaredMaps& maps,
                 std::filesystem::path file, spdlog::logger& log)
      : io_(io), engine_(engine), maps_(maps), file_(std::move(file)), log_(log) {}

  // The spec that was read before anything was touched.
  void start(policy::Spec spec, Done done);
  // Reads the file again. `done` is called once, in the loop: when it is in force, or will not be.
  void reload(Done done);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  [[nodiscard]] SpecState state() const;
  // How the last one that came to an end went. `revision` is that of the spec in force.
  [[nodiscard]] const ReloadResult& last() const { return last_; }

 private:
  using Apply = boost::asio::awaitable<ApplyResult> (PolicyEngine::*)(policy::Spec);

  // `turn` counts the specs in the order in which they were asked for.
  void finish(std::uint64_t turn, ReloadResult result, const Done& done);
  void run(policy::Spec spec, Apply apply, Done done);
  // All of the spec, or nothing of it: entries of maps are read before the policy changes.
  [[nodiscard]] boost::asio::awaitable<ReloadResult> bring_in(policy::Spec spec, Apply apply);

  boost::asio::io_context& io_;
  PolicyEngine& engine_;
  DeclaredMaps& maps_;
  const std::filesystem::path file_;
  spdlog::logger& log_;
  std::size_t running_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t last_turn_ = 0;  // of last_
  ReloadResult last_;
  reconciler::Revision revision_ = 0;
  bool any_applied_ = false;
};

}  // namespace mapgate::engine
