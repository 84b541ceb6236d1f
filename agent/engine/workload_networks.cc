// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/workload_networks.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

namespace mapgate::engine {
namespace {

namespace fs = std::filesystem;
namespace asio = boost::asio;

// A look can miss a process: a thread that ends right after it made another one.
constexpr int kMissesToClose = 5;

void find_in(const fs::path& cgroup, WorkloadId workload,
             std::map<std::uint64_t, FoundNetwork>& found) {
  std::ifstream threads(cgroup / "cgroup.threads");
  // A thread of a PID namespace that is not ours to see is 0.
  for (pid_t thread = 0; threads >> thread;) {
    if (thread <= 0) continue;
    const auto inode = sockets::network_inode(thread);
    if (!inode) continue;
    FoundNetwork& network = found[*inode];
    network.thread = thread;
    network.workloads.insert(workload);
  }
}

dns::Endpoint client_of(const mg_unserved& event) {
  policy::IpAddress::Bytes bytes;
  std::copy_n(event.source, bytes.size(), bytes.begin());
  return {policy::IpAddress(bytes), ntohs(event.port)};
}

}  // namespace

std::vector<WorkloadCgroup> attached_cgroups(const datapath::Datapath& datapath) {
  std::vector<WorkloadCgroup> cgroups;
  for (const datapath::Attachment& attachment : datapath.attachments())
    if (!attachment.path.empty()) cgroups.push_back({attachment.path, attachment.workload});
  return cgroups;
}

std::map<std::uint64_t, FoundNetwork> find_networks(const std::vector<WorkloadCgroup>& cgroups) {
  std::map<std::uint64_t, FoundNetwork> found;
  for (const WorkloadCgroup& cgroup : cgroups) {
    find_in(cgroup.path, cgroup.workload, found);
    std::error_code error;
    for (fs::recursive_directory_iterator entry(cgroup.path, error), end; !error && entry != end;
         entry.increment(error))
      if (entry->is_directory(error)) find_in(entry->path(), cgroup.workload, found);
  }
  return found;
}

WorkloadNetworks::WorkloadNetworks(const Environment& environment)
    : environment_(environment),
      events_(environment.io, environment.datapath.unserved_fd()),
      timer_(environment.io) {
  wait_for_events();
  look();
}

// The descriptor is the datapath's.
WorkloadNetworks::~WorkloadNetworks() {
  events_.release();
  pool_.join();
}

NetworkStatus WorkloadNetworks::status() const {
  NetworkStatus status = counts_;
  for (const auto& [inode, held] : held_) status.networks.push_back(held.network);
  std::ranges::sort(status.networks, {}, &WorkloadNetwork::cookie);
  return status;
}

void WorkloadNetworks::wait_for_events() {
  events_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                       if (error || alive.expired()) return;
                       environment_.datapath.consume_unserved(
                           [this](const mg_unserved& event) { on_event(event); });
                       wait_for_events();
                     });
}

void WorkloadNetworks::on_event(const mg_unserved& event) {
  if (event.length > 0) {
    if (!knows(event.network)) return;  // the client asks again
    ++counts_.queries;
    environment_.proxy.take_query(
        event.network, event.slot, client_of(event),
        std::span(event.query).first(std::min<std::size_t>(event.length, MG_MAX_QUERY)));
    return;
  }
  if (knows(event.network)) return;
  const auto thread = static_cast<pid_t>(event.thread);
  if (const auto inode = sockets::network_inode(thread);
      inode && *inode != environment_.own_inode && !held_.contains(*inode))
    open(thread, *inode, {event.workload});
  // Its thread has ended, or works with a socket of another namespace than its own.
  if (!knows(event.network)) ++counts_.not_found;
}

bool WorkloadNetworks::knows(datapath::NetworkCookie cookie) const {
  return std::ranges::any_of(
      held_, [&](const auto& held) { return held.second.network.cookie == cookie; });
}

// Reading /proc for every thread takes too long for the loop.
void WorkloadNetworks::look() {
  look_began_ = std::chrono::steady_clock::now();
  auto cgroups = attached_cgroups(environment_.datapath);
  asio::post(pool_, [this, cgroups = std::move(cgroups), alive = std::weak_ptr(alive_)] {
    asio::post(environment_.io, [this, alive, found = find_networks(cgroups)] {
      if (!alive.expired()) take(found);
    });
  });
}

void WorkloadNetworks::take(const Found& found) {
  for (const auto& [inode, network] : found) {
    if (inode == environment_.own_inode) continue;
    const auto held = held_.find(inode);
    if (held == held_.end()) {
      open(network.thread, inode, network.workloads);
      continue;
    }
    held->second.network.workloads = network.workloads;
    held->second.misses = 0;
  }
  for (auto held = held_.begin(); held != held_.end();) {
    const bool missed = !found.contains(held->first);
    if (missed && ++held->second.misses >= kMissesToClose) {
      close(held->second);
      held = held_.erase(held);
    } else {
      ++held;
    }
  }
  if (!std::exchange(looked_, true)) forget_earlier_ones();
  const auto took = std::chrono::steady_clock::now() - look_began_;
  timer_.expires_after(std::max<std::chrono::steady_clock::duration>(kInterval, kMaxShare * took));
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) look();
  });
}

// Namespaces of an earlier daemon that no workload is in now.
void WorkloadNetworks::forget_earlier_ones() {
  for (const datapath::NetworkCookie cookie : environment_.datapath.proxied_networks()) {
    if (cookie == datapath::kUnknownNetwork || cookie == environment_.own || knows(cookie))
      continue;
    (void)environment_.datapath.remove_proxy_ports(cookie);
  }
}

void WorkloadNetworks::open(pid_t thread, std::uint64_t inode,
                            const std::set<WorkloadId>& workloads) {
  auto network = sockets::NetworkNamespace::of_thread(thread);
  if (!network) return;  // it has ended
  UniqueFd socket(network->open_socket(AF_INET, SOCK_DGRAM));
  const int error = errno;
  const auto cookie = socket ? datapath::network_cookie(socket.get())
                             : std::unexpected(datapath::system_error("make a socket", error));
  if (!cookie) {
    ++counts_.failed;
    // It is tried again at every look.
    std::string failure =
        fmt::format("network namespace {} cannot be served: {}", inode, cookie.error().message());
    if (failure != last_failure_) environment_.log.error("{}", failure);
    last_failure_ = std::move(failure);
    return;
  }
  // Between the look and now the thread may have moved, even to where it is served.
  if (*cookie == environment_.own || knows(*cookie)) return;
  Held held{
      .network = {
          .cookie = *cookie, .inode = inode, .ports = {}, .workloads = workloads, .error = {}}};
  if (auto ports = serve(*cookie, std::move(*network))) {
    held.network.ports = *ports;
    ++served_;
    ++counts_.opened;
    environment_.log.info("serving DNS in network namespace {}", inode);
  } else {
    held.network.error = ports.error();
    environment_.log.error("DNS is denied in network namespace {}: {}", inode, ports.error());
    // No ports: the client hears at once, instead of waiting for answers that nobody gives.
    (void)environment_.datapath.set_proxy_ports(*cookie, {});
  }
  held_.emplace(inode, std::move(held));
}

std::expected<datapath::ProxyPorts, std::string> WorkloadNetworks::serve(
    datapath::NetworkCookie cookie, sockets::NetworkNamespace network) {
  if (served_ >= kMaxNetworks) {
    ++counts_.refused;
    return std::unexpected("the limit of " + std::to_string(kMaxNetworks) +
                           " network namespaces is reached");
  }
  datapath::ProxyPorts preferred = environment_.datapath.proxy_ports(cookie);
  if (preferred == datapath::ProxyPorts{}) preferred = environment_.proxy.ports();
  auto ports = environment_.proxy.add_network(cookie, std::move(network), preferred);
  if (!ports) {
    ++counts_.failed;
    return ports;
  }
  if (auto set = environment_.datapath.set_proxy_ports(cookie, *ports); !set) {
    ++counts_.failed;
    environment_.proxy.remove_network(cookie);
    return std::unexpected(set.error().message());
  }
  return ports;
}

void WorkloadNetworks::close(const Held& held) {
  // First the steering, then the sockets.
  (void)environment_.datapath.remove_proxy_ports(held.network.cookie);
  if (!held.network.error.empty()) return;
  environment_.proxy.remove_network(held.network.cookie);
  --served_;
  ++counts_.closed;
  environment_.log.info("no workload is in network namespace {} any more", held.network.inode);
}

}  // namespace mapgate::engine
