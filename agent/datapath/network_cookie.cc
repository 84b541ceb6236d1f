// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/network_cookie.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "agent/datapath/environment.h"
#include "agent/datapath/kernel_object.h"
#include "agent/unique_fd.h"
#include "network_probe.skel.h"

// Not in the headers of every distribution that builds this.
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStep = "find the cookie of a network namespace";

struct ProbeDeleter {
  void operator()(network_probe_bpf* probe) const { network_probe_bpf::destroy(probe); }
};
using Probe = std::unique_ptr<network_probe_bpf, ProbeDeleter>;

Result<Probe> load_probe() {
  LibbpfLog log;
  Probe probe(network_probe_bpf::open(nullptr));
  if (!probe) return std::unexpected(Error{kStep, errno, log.first_line()});
  if (auto loaded = load_object(probe->obj); !loaded) return std::unexpected(loaded.error());
  return probe;
}

// The cgroup (v2) of this process.
Result<UniqueFd> open_own_cgroup() {
  auto root = find_cgroup2_root();
  if (!root) return std::unexpected(root.error());
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    if (!line.starts_with("0::/")) continue;
    const fs::path path = *root / line.substr(4);
    UniqueFd cgroup(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!cgroup) return std::unexpected(system_error("open " + path.string(), errno));
    return cgroup;
  }
  return std::unexpected(Error{kStep, ENOENT, "this process is in no cgroup of version 2"});
}

}  // namespace

Result<NetworkCookie> network_cookie(int socket) {
  NetworkCookie cookie = kUnknownNetwork;
  socklen_t size = sizeof cookie;
  if (::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) == 0) return cookie;
  if (errno != ENOPROTOOPT) return std::unexpected(system_error(kStep, errno));
  return probe_network_cookie(socket);
}

Result<NetworkCookie> probe_network_cookie(int socket) {
  std::uint64_t socket_cookie = 0;
  socklen_t size = sizeof socket_cookie;
  if (::getsockopt(socket, SOL_SOCKET, SO_COOKIE, &socket_cookie, &size) != 0)
    return std::unexpected(system_error(kStep, errno));
  auto probe = load_probe();
  if (!probe) return std::unexpected(probe.error());
  auto cgroup = open_own_cgroup();
  if (!cgroup) return std::unexpected(cgroup.error());
  const int probed = bpf_map__fd((*probe)->maps.mg_probed);
  NetworkCookie cookie = kUnknownNetwork;
  if (bpf_map_update_elem(probed, &socket_cookie, &cookie, BPF_ANY) != 0)
    return std::unexpected(system_error(kStep, errno));
  const UniqueFd link(bpf_link_create(bpf_program__fd((*probe)->progs.mg_probe), cgroup->get(),
                                      BPF_CGROUP_INET4_CONNECT, nullptr));
  if (!link) return std::unexpected(system_error(kStep, errno));
  // Whether it gets anywhere does not matter: the program runs before.
  sockaddr_in discard{};
  discard.sin_family = AF_INET;
  discard.sin_port = htons(9);
  discard.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)::connect(socket, reinterpret_cast<const sockaddr*>(&discard), sizeof discard);
  (void)bpf_link_detach(link.get());
  if (bpf_map_lookup_elem(probed, &socket_cookie, &cookie) != 0 || cookie == kUnknownNetwork)
    return std::unexpected(Error{kStep, 0, "the program that should tell it did not run"});
  return cookie;
}

}  // namespace mapgate::datapath
