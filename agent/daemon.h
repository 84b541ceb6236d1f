// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <spdlog/logger.h>

#include "agent/engine/policy_engine.h"
#include "agent/policy/address.h"
#include "agent/policy/spec.h"

namespace mapgate {

// What --fault-inject asks for. For tests.
struct InjectedFaults {
  bool no_hold = false;  // answers do not wait for the kernel
  std::chrono::nanoseconds write_delay{};
  std::vector<policy::IpAddress> fail_addresses;  // learned addresses whose writes fail

  // "no-hold,write-delay=20ms,fail-address=192.0.2.7"; the error is one line.
  [[nodiscard]] static std::expected<InjectedFaults, std::string> parse(const std::string& text);
  [[nodiscard]] bool in_writes() const {
    return write_delay.count() != 0 || !fail_addresses.empty();
  }
};

// What can be said of a parsed spec without a kernel: whether its rows, ids and port sets fit. The
// error is one line.
[[nodiscard]] std::expected<void, std::string> check_spec(const policy::Spec& spec);
// And of the entries of the maps that it declares.
[[nodiscard]] std::vector<policy::SpecError> check_entries(const std::filesystem::path& file,
                                                           const policy::Spec& spec);

struct DaemonOptions {
  std::filesystem::path spec;
  std::filesystem::path state_directory;
  std::filesystem::path runtime_directory;
  std::filesystem::path bpffs;
  std::optional<std::filesystem::path> cgroup_root;  // none: where cgroup v2 is mounted
  InjectedFaults faults;
};

// mapgated: everything that it is made of, on one event loop.
class Daemon {
 public:
  // Checks what it needs, takes over what an earlier daemon left, and opens its control socket.
  // Nothing that is enforced changes before run(). The error is one line.
  [[nodiscard]] static std::expected<std::unique_ptr<Daemon>, std::string> create(
      const DaemonOptions& options, const policy::NodeSettings& node, spdlog::logger& log);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Brings the spec into force and keeps it so until SIGTERM or SIGINT: kApplied. Otherwise it
  // could not be brought into force; the log says why.
  [[nodiscard]] engine::ApplyOutcome run(policy::Spec spec);

 private:
  class Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace mapgate
