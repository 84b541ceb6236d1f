// SPDX-License-Identifier: Apache-2.0
// The daemon's command line, see docs/cli.md.
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include <malloc.h>

#include <CLI/CLI.hpp>

#include "agent/daemon.h"

namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;
constexpr int kExitSpecRefused = 4;

std::string environment_or(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

struct CommandLine {
  mapgate::DaemonOptions options{
      .spec = "/etc/mapgate/spec.yaml",
      .state_directory = environment_or("STATE_DIRECTORY", "/var/lib/mapgate"),
      .runtime_directory = environment_or("RUNTIME_DIRECTORY", "/run/mapgate"),
      .bpffs = "/sys/fs/bpf/mapgate",
      .cgroup_root = std::nullopt,
      .faults = {}};
  std::string cgroup_root;
  std::string fault_inject;
  std::string log_level = "info";
  bool check = false;
};

void describe(CLI::App& app, CommandLine& line) {
  app.footer(
      "Signals: SIGHUP reads the spec again, SIGTERM ends the daemon; what is enforced stays so.\n"
      "Exit codes: 0 ended by a signal, or --check found nothing; 1 could not start; 2 wrong "
      "usage; "
      "4 the spec was refused.");
  app.set_version_flag("--version", "mapgated " MAPGATE_VERSION);
  app.add_option("--spec", line.options.spec, "The spec, YAML or JSON")->capture_default_str();
  app.add_option("--state-dir", line.options.state_directory, "What survives a restart")
      ->capture_default_str();
  app.add_option("--runtime-dir", line.options.runtime_directory,
                 "Holds the control socket, control.sock")
      ->capture_default_str();
  app.add_option("--bpffs", line.options.bpffs, "Where maps, programs and links are pinned")
      ->capture_default_str();
  app.add_option("--cgroup-root", line.cgroup_root,
                 "What the spec's paths are relative to [where cgroup v2 is mounted]");
  app.add_option("--log-level", line.log_level, "What is logged to stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--fault-inject", line.fault_inject,
                 "For tests: no-hold,write-delay=20ms,fail-address=192.0.2.7");
  app.add_flag("--check", line.check, "Check the spec and end");
}

std::shared_ptr<spdlog::logger> make_logger(const std::string& level) {
  auto logger = spdlog::stderr_logger_st("mapgated");
  // journald has the time already.
  logger->set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%l: %v"
                                                               : "%Y-%m-%dT%H:%M:%S.%f%z %l: %v");
  logger->set_level(spdlog::level::from_str(level));
  return logger;
}

int run(CommandLine& line) {
  if (!line.cgroup_root.empty()) line.options.cgroup_root = line.cgroup_root;
  if (!line.fault_inject.empty()) {
    auto faults = mapgate::InjectedFaults::parse(line.fault_inject);
    if (!faults) {
      std::cerr << "mapgated: --fault-inject: " << faults.error() << "\n";
      return kExitUsage;
    }
    line.options.faults = std::move(*faults);
  }
  auto spec = mapgate::policy::load_spec(line.options.spec);
  if (!spec) {
    for (const auto& fault : spec.error()) std::cerr << fault.to_string() << "\n";
    return kExitSpecRefused;
  }
  if (const auto fits = mapgate::check_spec(*spec); !fits) {
    std::cerr << line.options.spec.string() << ": " << fits.error() << "\n";
    return kExitSpecRefused;
  }
  if (line.check) {
    const auto faults = mapgate::check_entries(line.options.spec, *spec);
    for (const auto& fault : faults) std::cerr << fault.to_string() << "\n";
    return faults.empty() ? 0 : kExitSpecRefused;
  }
  const auto logger = make_logger(line.log_level);
  auto daemon = mapgate::Daemon::create(line.options, spec->node, *logger);
  if (!daemon) {
    std::cerr << "mapgated: " << daemon.error() << "\n";
    return kExitCannotStart;
  }
  switch ((*daemon)->run(std::move(*spec))) {
    case mapgate::engine::ApplyOutcome::kApplied:
      return 0;
    case mapgate::engine::ApplyOutcome::kRefused:
      return kExitSpecRefused;
    default:
      return kExitCannotStart;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line;
  CLI::App app{
      "mapgated keeps BPF maps at what a spec and DNS answers say, and enforces it on cgroups.",
      "mapgated"};
  describe(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  // What a million rows are read into goes back when it is freed: by default the allocator keeps
  // larger and larger blocks, in each thread's arena.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  try {
    return run(line);
  } catch (const std::exception& error) {
    std::cerr << "mapgated: " << error.what() << "\n";
    return kExitCannotStart;
  }
}
