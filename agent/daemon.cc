// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include <mapgate/maps/fault_injection.h>
#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_operations.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "agent/control/api.h"
#include "agent/control/http_server.h"
#include "agent/datapath/datapath.h"
#include "agent/datapath/environment.h"
#include "agent/dns/proxy.h"
#include "agent/dns/system_resolvers.h"
#include "agent/engine/datapath_binding.h"
#include "agent/engine/datapath_keeper.h"
#include "agent/engine/declared_maps.h"
#include "agent/engine/denial_log.h"
#include "agent/engine/kernel_connections.h"
#include "agent/engine/policy_engine.h"
#include "agent/engine/spec_controller.h"
#include "agent/engine/workload_networks.h"
#include "agent/state/store.h"
#include "agent/unique_fd.h"

namespace mapgate {
namespace {

namespace fs = std::filesystem;

template <typename T>
using OrError = std::expected<T, std::string>;

constexpr auto kLastWords = std::chrono::milliseconds(50);
constexpr auto kResyncInterval = std::chrono::minutes(10);
// The order of the daemon's maps: what MapIndex means here.
constexpr policy::MapIndices kIndices{.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3};
constexpr std::array kMapNames{datapath::kAddressesMap, datapath::kPrefixesMap, datapath::kPortsMap,
                               datapath::kWorkloadsMap};

std::string errno_text(int error) {
  return std::error_code(error, std::system_category()).message();
}

OrError<void> check_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (syscall(SYS_capget, &header, data.data()) != 0)
    return std::unexpected("capget: " + errno_text(errno));
  const auto has = [&](unsigned capability) {
    return (data[capability / 32].effective >> capability % 32 & 1) != 0;
  };
  std::string missing;
  if (!has(CAP_SYS_ADMIN) && !has(CAP_BPF)) missing += " CAP_BPF";
  if (!has(CAP_SYS_ADMIN) && !has(CAP_PERFMON)) missing += " CAP_PERFMON";
  if (!has(CAP_NET_ADMIN)) missing += " CAP_NET_ADMIN";
  if (!has(CAP_DAC_READ_SEARCH)) missing += " CAP_DAC_READ_SEARCH";
  if (missing.empty()) return {};
  return std::unexpected("not privileged enough: run it as root, or give it" + missing);
}

// The datapath holds a dozen links of every workload; the usual soft limit of 1024 descriptors is
// for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // without it an attach fails and says so
}

OrError<void> make_directory(const fs::path& directory, fs::perms permissions) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (made && !error) fs::permissions(directory, permissions, error);
  if (error)
    return std::unexpected("cannot make the folder " + directory.string() + ": " + error.message());
  return {};
}

// The process that holds the lock of this file, " (process 123)"; empty if /proc/locks does not
// say.
std::string lock_holder(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return {};
  char id[64];
  std::snprintf(id, sizeof id, "%02x:%02x:%ju", major(file.st_dev), minor(file.st_dev),
                static_cast<std::uintmax_t>(file.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    // number: FLOCK ADVISORY WRITE pid device:inode start end
    std::istringstream fields(line);
    std::string number, kind, advisory, access, pid, inode;
    fields >> number >> kind >> advisory >> access >> pid >> inode;
    if (kind == "FLOCK" && inode == id) return " (process " + pid + ")";
  }
  return {};
}

// Two daemons on one set of maps would undo each other's work for ever.
OrError<UniqueFd> lock_directory(const fs::path& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return std::unexpected("cannot open " + directory.string() + ": " + errno_text(errno));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return std::unexpected(errno == EWOULDBLOCK
                               ? "another mapgated" + lock_holder(fd.get()) + " uses " +
                                     directory.string()
                               : "cannot lock " + directory.string() + ": " + errno_text(errno));
  }
  return fd;
}

template <typename Number>
Number random_number() {
  Number number{};
  // Cannot fail for so few bytes once the kernel has booted.
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) std::abort();
  return number;
}

// The map that the programs use, by its pin if that is there: only then it can be opened again.
OrError<maps::Map> open_map(const datapath::Datapath& datapath, const fs::path& bpffs,
                            std::string_view name) {
  auto used = maps::Map::from_fd(datapath.map_fd(name));
  if (!used) return std::unexpected(used.error().text());
  auto pinned = maps::Map::open_pin(bpffs / "maps" / name);
  return std::move(pinned && pinned->info().id == used->info().id ? *pinned : *used);
}

OrError<maps::MapOperations> open_maps(const datapath::Datapath& datapath, const fs::path& bpffs,
                                       maps::MapCalls& calls) {
  std::vector<maps::Map> maps;
  for (const std::string_view name : kMapNames) {
    auto map = open_map(datapath, bpffs, name);
    if (!map) return std::unexpected(map.error());
    maps.push_back(std::move(*map));
  }
  maps::MapOperations::Options options;
  options.now = [] { return reconciler::TimePoint(std::chrono::steady_clock::now()); };
  auto operations = maps::MapOperations::create(std::move(maps), calls, std::move(options));
  if (!operations) return std::unexpected(operations.error().text());
  return std::move(*operations);
}

maps::Faults to_faults(const InjectedFaults& injected) {
  maps::Faults faults;
  faults.write_delay = injected.write_delay;
  faults.sleep = [](reconciler::Duration delay) { std::this_thread::sleep_for(delay); };
  faults.error =
      [addresses = injected.fail_addresses](
          const maps::Faults::Operation& operation) -> std::optional<reconciler::OperationError> {
    if (operation.key.map() != kIndices.addresses || !operation.value) return std::nullopt;
    const auto key = operation.key.as<mg_address_key>();
    policy::IpAddress::Bytes bytes;
    std::copy_n(key.address, bytes.size(), bytes.begin());
    if (std::ranges::find(addresses, policy::IpAddress(bytes)) == addresses.end())
      return std::nullopt;
    return reconciler::OperationError{reconciler::ErrorClass::kTransient, EIO, "fault injected"};
  };
  return faults;
}

}  // namespace

OrError<void> check_spec(const policy::Spec& spec) {
  policy::Allocations none;
  if (auto compiled = policy::compile(spec, none, kIndices); !compiled)
    return std::unexpected(compiled.error());
  return {};
}

std::vector<policy::SpecError> check_entries(const fs::path& file, const policy::Spec& spec) {
  return engine::check_declared_rows(file.native(), spec.maps);
}

OrError<InjectedFaults> InjectedFaults::parse(const std::string& text) {
  InjectedFaults faults;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string fault = text.substr(start, end - start);
    start = end + 1;
    const std::string value = fault.substr(std::min(fault.find('=') + 1, fault.size()));
    if (fault == "no-hold") {
      faults.no_hold = true;
    } else if (fault.starts_with("write-delay=") && value.ends_with("ms")) {
      unsigned milliseconds = 0;
      const char* last = value.data() + value.size() - 2;
      const auto [read, error] = std::from_chars(value.data(), last, milliseconds);
      if (error != std::errc() || read != last) return std::unexpected("not a delay: " + value);
      faults.write_delay = std::chrono::milliseconds(milliseconds);
    } else if (const auto address = policy::IpAddress::parse(value);
               fault.starts_with("fail-address=") && address) {
      faults.fail_addresses.push_back(*address);
    } else {
      return std::unexpected("not a fault: \"" + fault +
                             "\" (no-hold, write-delay=20ms, fail-address=192.0.2.7)");
    }
  }
  return faults;
}

// In the order of who uses whom: what is destroyed first uses what is destroyed later.
class Daemon::Parts {
 public:
  Parts(const DaemonOptions& options, spdlog::logger& log)
      : options_(options), log_(log), io_(1), signals_(io_, SIGTERM, SIGINT, SIGHUP) {}

  OrError<void> open(const policy::NodeSettings& node);
  engine::ApplyOutcome run(policy::Spec spec);

 private:
  OrError<void> open_datapath(const policy::NodeSettings& node);
  OrError<void> open_engine(const policy::NodeSettings& node);
  void open_declared_maps(const reconciler::Options& reconciler);
  OrError<void> open_proxy(const policy::NodeSettings& node);
  OrError<void> open_control();
  void wait_for_signal();
  void reload();

  const DaemonOptions options_;
  spdlog::logger& log_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  fs::path cgroup_root_;
  UniqueFd lock_;
  std::optional<datapath::Datapath> datapath_;
  maps::KernelMapCalls map_calls_;
  std::optional<maps::MapOperations> operations_;
  std::optional<maps::FaultInjectingOperations> faulty_operations_;
  std::unique_ptr<state::Store> store_;
  std::optional<engine::DatapathKeeper> keeper_;
  std::optional<engine::DatapathEnforcement> enforcement_;
  std::unique_ptr<engine::WorkloadBindings> bindings_;
  std::optional<engine::KernelConnections> connections_;
  dns::SystemResolvers system_resolvers_{dns::SystemResolvers::default_files()};
  std::unique_ptr<engine::PolicyEngine> engine_;
  std::optional<engine::DeclaredMaps> declared_;
  std::optional<engine::SpecController> specs_;
  std::optional<engine::DatapathFlows> flows_;
  dns::SystemRandom random_;
  std::unique_ptr<dns::Proxy> proxy_;
  std::optional<engine::WorkloadNetworks> networks_;
  std::optional<engine::DenialLog> denials_;
  std::optional<control::Api> api_;
  std::unique_ptr<control::HttpServer> server_;
};

OrError<void> Daemon::Parts::open(const policy::NodeSettings& node) {
  if (auto allowed = check_capabilities(); !allowed) return allowed;
  raise_descriptor_limit();
  if (auto opened = open_datapath(node); !opened) return opened;
  if (auto opened = open_engine(node); !opened) return opened;
  if (auto opened = open_proxy(node); !opened) return opened;
  return open_control();
}

OrError<void> Daemon::Parts::open_datapath(const policy::NodeSettings& node) {
  if (options_.cgroup_root) {
    cgroup_root_ = *options_.cgroup_root;
    if (auto id = datapath::cgroup_id(cgroup_root_); !id)
      return std::unexpected(id.error().message());
  } else {
    auto found = datapath::find_cgroup2_root();
    if (!found) return std::unexpected(found.error().message());
    cgroup_root_ = *found;
  }
  if (auto found = datapath::check_bpffs(options_.bpffs); !found)
    return std::unexpected(found.error().message());
  if (auto made = make_directory(options_.bpffs, fs::perms::owner_all); !made) return made;
  auto lock = lock_directory(options_.bpffs);
  if (!lock) return std::unexpected(lock.error());
  lock_ = std::move(*lock);
  datapath::Options options;
  options.bpffs = options_.bpffs;
  options.cgroup_root = cgroup_root_;
  options.sizes.addresses = node.maps.addresses;
  options.sizes.prefixes = node.maps.prefixes;
  options.sizes.ports = node.maps.ports;
  auto opened = datapath::Datapath::open(options);
  if (!opened) return std::unexpected(opened.error().message());
  datapath_ = std::move(*opened);
  enforcement_.emplace(*datapath_);
  flows_.emplace(*datapath_);
  connections_.emplace(*datapath_, cgroup_root_);
  return {};
}

OrError<void> Daemon::Parts::open_engine(const policy::NodeSettings& node) {
  if (auto made = make_directory(options_.state_directory, fs::perms::owner_all); !made)
    return made;
  auto store = state::Store::open(options_.state_directory);
  if (!store) return std::unexpected(store.error().text);
  store_ = std::move(*store);
  if (const auto& moved = store_->moved_aside()) {
    log_.error("the state was no sound database and is now {}; learned names are lost",
               moved->string());
  }
  auto operations = open_maps(*datapath_, options_.bpffs, map_calls_);
  if (!operations) return std::unexpected(operations.error());
  operations_ = std::move(*operations);
  keeper_.emplace(engine::DatapathKeeper::Environment{
      io_, *datapath_, *operations_, kMapNames,
      [this](std::string_view name) { return open_map(*datapath_, options_.bpffs, name); }, log_});
  engine::Operations* used = &*operations_;
  if (options_.faults.in_writes()) {
    log_.warn("faults are injected: this is for tests");
    used = &faulty_operations_.emplace(*operations_, to_faults(options_.faults));
  }
  auto bindings =
      engine::WorkloadBindings::create(io_.get_executor(), cgroup_root_, *enforcement_, log_);
  if (!bindings) return std::unexpected(bindings.error());
  bindings_ = std::move(*bindings);
  engine::EngineOptions engine_options{.indices = kIndices, .node = node, .reconciler = {}};
  engine_options.hold_answers = !options_.faults.no_hold;
  if (options_.faults.no_hold) log_.warn("answers are not held: this is for measuring");
  engine_options.reconciler.resync_interval = kResyncInterval;
  engine_options.reconciler.seed = random_number<std::uint64_t>();
  const auto epoch = reconciler::Epoch::from_random(random_number<std::uint64_t>(),
                                                    random_number<std::uint64_t>());
  engine_ = std::make_unique<engine::PolicyEngine>(
      engine::PolicyEngine::Environment{io_, *used, *keeper_, *bindings_, *connections_, *store_,
                                        system_resolvers_, log_},
      epoch, engine_options);
  keeper_->start(engine_->loop());
  open_declared_maps(engine_options.reconciler);
  specs_.emplace(io_, *engine_, *declared_, options_.spec, log_);
  denials_.emplace(
      io_, *datapath_, [this](engine::WorkloadId id) { return engine_->workload_name(id); }, log_);
  return {};
}

void Daemon::Parts::open_declared_maps(const reconciler::Options& reconciler) {
  const engine::DeclaredMap::Environment environment{
      .io = io_, .calls = map_calls_, .log = log_, .reconciler = reconciler, .new_epoch = [] {
        return reconciler::Epoch::from_random(random_number<std::uint64_t>(),
                                              random_number<std::uint64_t>());
      }};
  declared_.emplace(environment, engine::DeclaredMaps::Options{.spec_file = options_.spec,
                                                               .own_folder = options_.bpffs});
}

OrError<void> Daemon::Parts::open_proxy(const policy::NodeSettings& node) {
  UniqueFd socket(sockets::NetworkNamespace().open_socket(AF_INET, SOCK_DGRAM));
  if (!socket) return std::unexpected("cannot make a socket: " + errno_text(errno));
  const auto own = datapath::network_cookie(socket.get());
  if (!own) return std::unexpected(own.error().message());
  const auto inode = sockets::network_inode(getpid());
  if (!inode) return std::unexpected("/proc/self/ns/net: " + inode.error().message());
  dns::ProxyOptions options;
  options.network = *own;
  options.preferred_ports = datapath_->proxy_ports(datapath::kUnknownNetwork);
  options.upstream_timeout = node.dns.upstream_timeout;
  auto proxy = dns::Proxy::create(io_, options, *flows_, *engine_, random_);
  if (!proxy) return std::unexpected("DNS proxy: " + proxy.error());
  proxy_ = std::move(*proxy);
  for (const datapath::NetworkCookie network : {*own, datapath::kUnknownNetwork})
    if (auto set = datapath_->set_proxy_ports(network, proxy_->ports()); !set)
      return std::unexpected(set.error().message());
  networks_.emplace(engine::WorkloadNetworks::Environment{.io = io_,
                                                          .datapath = *datapath_,
                                                          .proxy = *proxy_,
                                                          .log = log_,
                                                          .own_inode = *inode,
                                                          .own = *own});
  return {};
}

OrError<void> Daemon::Parts::open_control() {
  if (auto made = make_directory(options_.runtime_directory, fs::perms(0755)); !made) return made;
  api_.emplace(control::ApiSources{
      .engine = *engine_,
      .specs = *specs_,
      .declared = *declared_,
      .map_calls = map_calls_,
      .maps = [this] { return operations_->status(); },
      .dns = [this] { return proxy_->counters(); },
      .counters = [this](engine::WorkloadId id) -> std::optional<mg_counters> {
        const auto counters = datapath_->counters(id);
        return counters ? std::optional(*counters) : std::nullopt;
      },
      .datapath = [this] { return keeper_->health(); },
      .networks = [this] { return networks_->status(); },
      .foreign_sockets_missing = datapath_->capabilities().foreign_sockets_missing,
      .version = MAPGATE_VERSION});
  auto server = control::HttpServer::listen(
      io_.get_executor(), options_.runtime_directory / "control.sock", {},
      [this](control::HttpRequest request) { return api_->handle(std::move(request)); });
  if (!server) return std::unexpected(server.error());
  server_ = std::move(*server);
  return {};
}

engine::ApplyOutcome Daemon::Parts::run(policy::Spec spec) {
  auto outcome = engine::ApplyOutcome::kApplied;
  wait_for_signal();
  specs_->start(std::move(spec), [&](const engine::ReloadResult& result) {
    if (result.outcome == engine::ApplyOutcome::kApplied) {
      sd_notify(0, "READY=1");
      return;
    }
    outcome = result.outcome;
    io_.stop();
  });
  io_.run();
  sd_notify(0, "STOPPING=1");
  // Whoever still waits is told so.
  engine_->shut_down();
  io_.restart();
  io_.run_for(kLastWords);
  return outcome;
}

void Daemon::Parts::wait_for_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    if (signal != SIGHUP) {
      log_.info("ending on signal {}; what is enforced stays so", signal);
      io_.stop();
      return;
    }
    reload();
    wait_for_signal();
  });
}

void Daemon::Parts::reload() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now_us)).c_str());
  specs_->reload([](const engine::ReloadResult&) { sd_notify(0, "READY=1"); });
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

OrError<std::unique_ptr<Daemon>> Daemon::create(const DaemonOptions& options,
                                                const policy::NodeSettings& node,
                                                spdlog::logger& log) {
  auto parts = std::make_unique<Parts>(options, log);
  if (auto opened = parts->open(node); !opened) return std::unexpected(opened.error());
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

engine::ApplyOutcome Daemon::run(policy::Spec spec) {
  return parts_->run(std::move(spec));
}

}  // namespace mapgate
