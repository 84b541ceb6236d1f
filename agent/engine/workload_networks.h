// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <spdlog/logger.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "agent/datapath/datapath.h"
#include "agent/dns/proxy.h"
#include "agent/engine/network_status.h"
#include "agent/sockets/network_namespace.h"

namespace mapgate::engine {

// A cgroup whose processes are a workload's.
struct WorkloadCgroup {
  std::filesystem::path path;
  WorkloadId workload = 0;
};

// Those that the datapath is attached to.
[[nodiscard]] std::vector<WorkloadCgroup> attached_cgroups(const datapath::Datapath& datapath);

// A network namespace that threads are in: one of them, and whose.
struct FoundNetwork {
  pid_t thread = 0;
  std::set<WorkloadId> workloads;
};

// The network namespaces, by inode, of all threads in these cgroups and below. What ends meanwhile
// is left out.
[[nodiscard]] std::map<std::uint64_t, FoundNetwork> find_networks(
    const std::vector<WorkloadCgroup>& cgroups);

// Keeps the proxy listening in every network namespace that a process of a workload is in, and lets
// go of those that none is in: sockets keep a namespace, and with it a container's interfaces.
// Looks every kInterval, and at once when the datapath meets a namespace that it does not know. For
// the loop's thread.
class WorkloadNetworks {
 public:
  static constexpr std::chrono::milliseconds kInterval{200};
  // Never more than this part of one CPU, however many threads there are.
  static constexpr int kMaxShare = 20;
  // Beyond these DNS is denied in further ones. Each costs 18 sockets.
  static constexpr std::size_t kMaxNetworks = 128;

  // All of it outlives this. The proxy's own network is `own`, of inode `own_inode`.
  struct Environment {
    boost::asio::io_context& io;
    datapath::Datapath& datapath;
    dns::Proxy& proxy;
    spdlog::logger& log;
    std::uint64_t own_inode = 0;
    datapath::NetworkCookie own = datapath::kUnknownNetwork;
  };
  explicit WorkloadNetworks(const Environment& environment);
  ~WorkloadNetworks();
  WorkloadNetworks(const WorkloadNetworks&) = delete;
  WorkloadNetworks& operator=(const WorkloadNetworks&) = delete;

  [[nodiscard]] NetworkStatus status() const;

 private:
  struct Held {
    WorkloadNetwork network;
    int misses = 0;  // looks that did not find it, in a row
  };
  using Found = std::map<std::uint64_t, FoundNetwork>;

  void wait_for_events();
  void on_event(const mg_unserved& event);
  void look();
  void take(const Found& found);
  void forget_earlier_ones();
  void open(pid_t thread, std::uint64_t inode, const std::set<WorkloadId>& workloads);
  [[nodiscard]] std::expected<datapath::ProxyPorts, std::string> serve(
      datapath::NetworkCookie cookie, sockets::NetworkNamespace network);
  void close(const Held& held);
  [[nodiscard]] bool knows(datapath::NetworkCookie cookie) const;

  const Environment environment_;
  std::map<std::uint64_t, Held> held_;  // by inode
  std::size_t served_ = 0;
  bool looked_ = false;  // at least once
  std::chrono::steady_clock::time_point look_began_{};
  NetworkStatus counts_;  // without networks
  std::string last_failure_;
  boost::asio::posix::stream_descriptor events_;
  boost::asio::steady_timer timer_;
  boost::asio::thread_pool pool_{1};
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
