// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/datapath/error.h"
#include "agent/datapath/network_cookie.h"
#include "agent/datapath/proxy_ports.h"
#include "bpf/abi.h"

namespace mapgate::datapath {

class MapReplacement;

// Names of the maps whose rows are desired state (agent/maps writes them); bpf/abi.h has their
// layout.
inline constexpr std::string_view kWorkloadsMap = "mg_workloads";
inline constexpr std::string_view kAddressesMap = "mg_addresses";
inline constexpr std::string_view kPrefixesMap = "mg_prefixes";
inline constexpr std::string_view kPortsMap = "mg_ports";

// Sizes of the maps whose rows are desired state and that grow with it, in entries.
struct MapSizes {
  std::uint32_t addresses = 131072;
  std::uint32_t prefixes = 16384;
  std::uint32_t ports = 16384;

  friend bool operator==(const MapSizes&, const MapSizes&) = default;
};

struct Options {
  // A directory of its own on a bpffs. Made if missing; holds maps/, programs/ and links/<cgroup
  // id>/.
  std::filesystem::path bpffs = "/sys/fs/bpf/mapgate";
  // The cgroup v2 mount point; empty: found in /proc/self/mountinfo.
  std::filesystem::path cgroup_root;
  MapSizes sizes;
  // For new maps only: those that are there keep their size.
  std::uint32_t max_dns_flows = 16384;
  std::uint32_t max_udp_peers = 65536;
  // Judge sockets from other cgroups and AF_PACKET sockets too, if the kernel can (see
  // Capabilities).
  bool foreign_sockets = true;
  // For tests and benchmarks: programs run by BPF_PROG_TEST_RUN belong to no cgroup, so they judge
  // as this workload. 0, as in production: every program belongs to the workload its cgroup is
  // bound to.
  std::uint32_t test_workload = 0;
};

// What the kernel could not give, beyond what open() requires.
struct Capabilities {
  // What a workload connects or sends with a socket that it got from another cgroup is judged too.
  bool foreign_sockets = false;
  std::string foreign_sockets_missing;  // why not; empty if they are
};

struct Attachment {
  std::uint64_t cgroup = 0;
  std::uint32_t workload = 0;  // 0: attached, but not configured: denies everything
  std::filesystem::path path;  // empty if the cgroup's path could not be found
};

// IPv6, or IPv4 mapped into IPv6; network byte order.
using Address = std::array<std::uint8_t, 16>;

// Where a query that reached the proxy really was sent, and by whom.
struct DnsFlow {
  std::uint32_t workload = 0;
  Address resolver{};
  std::uint16_t port = 0;                           // host byte order
  std::uint64_t cookie = 0;                         // the client's socket
  std::chrono::steady_clock::time_point last_sent;  // last packet that left for the proxy
};

// Sums over all CPUs, since the map was made.
using Counters = mg_counters;

// What others have done to maps, pins and links; one line each.
struct Inspection {
  std::vector<std::string> repaired;  // and has been put right
  std::vector<std::string> problems;  // and is still so
  std::vector<std::string> frozen;    // of these, maps that replace_maps() can put right; names
};

// The kernel side of mapgate: its programs, maps, links and pins. What it attaches stays attached
// when the object or the process goes; the next open() adopts it. Not thread-safe. Needs root, or
// CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_DAC_READ_SEARCH (cgroups are opened by their id);
// before Linux 5.11 also CAP_SYS_RESOURCE (BPF memory was charged to RLIMIT_MEMLOCK). To find maps
// whose pins were removed, CAP_SYS_ADMIN.
class Datapath {
 public:
  // Finds or makes the maps, loads the programs, and moves every pinned link to them: links of
  // cgroups that are gone are dropped, missing ones added. No moment passes in which an attached
  // cgroup is not enforced.
  //
  // - The maps that attached programs use are taken, whatever is pinned in their place.
  // - A map of another size, or a frozen one, is replaced by a copy. ENOSPC: it holds more than
  //   the new size.
  // - A map of another layout, as an older version made it, is replaced by an empty one: see
  //   awaits_contents().
  // - EBUSY: another process writes the maps.
  [[nodiscard]] static Result<Datapath> open(const Options& options);

  // True: maps have a new layout, and the links still run the programs of before, on the maps of
  // before. Fill the new maps with all that they should hold, then switch_over().
  [[nodiscard]] bool awaits_contents() const;
  [[nodiscard]] Result<void> switch_over();

  // Begins to put new maps in the place of those that have another size, and of those named (see
  // Inspection::frozen). Nothing changes before MapReplacement::finish().
  [[nodiscard]] Result<MapReplacement> replace_maps(const MapSizes& sizes,
                                                    const std::vector<std::string>& names = {});

  // Of the maps in use.
  [[nodiscard]] const MapSizes& sizes() const;

  // Compares the pins, the links and the maps with what they should be, and puts right what it
  // can: a pin that was removed or replaced, a program that was detached. Looks at the links of
  // `max_cgroups` cgroups, and at the next ones at the next call.
  [[nodiscard]] Inspection inspect(std::size_t max_cgroups);

  Datapath(Datapath&&) noexcept;
  Datapath& operator=(Datapath&&) noexcept;
  ~Datapath();

  // Attaches to the cgroup at this path (absolute, or relative to the cgroup root) and binds it to
  // `workload` (1..MG_MAX_WORKLOADS-1). While the links go up the cgroup denies, as an unconfigured
  // one does. If it is attached already, only the binding changes. Returns the cgroup's id.
  [[nodiscard]] Result<std::uint64_t> attach(const std::filesystem::path& cgroup,
                                             std::uint32_t workload);

  // Ends enforcement for the cgroup. ENOENT if it is not attached.
  [[nodiscard]] Result<void> detach(std::uint64_t cgroup);

  // Forgets attachments whose cgroup is gone, with their pins. Returns the ids of those.
  std::vector<std::uint64_t> drop_dead_attachments();

  // In ascending order of cgroup id.
  [[nodiscard]] std::vector<Attachment> attachments() const;

  // Owned by the datapath, until its maps are replaced; -1 if there is no map of this name.
  [[nodiscard]] int map_fd(std::string_view name) const;

  // The id of a loaded program, e.g. "mg_egress"; 0 if there is no program of this name.
  [[nodiscard]] std::uint32_t program_id(std::string_view name) const;

  // Owned by the datapath; -1 if there is no program of this name. For BPF_PROG_TEST_RUN.
  [[nodiscard]] int program_fd(std::string_view name) const;

  // Where port 53 is steered to in the network namespace of this cookie. A port of 0 switches
  // steering of that kind off: port 53 is then denied (audit: passes). For kUnknownNetwork: where
  // the proxy will listen, if it can, in a namespace that none are set for; until they are set,
  // what is steered there is lost, and reported (consume_unserved). E2BIG: MG_MAX_NETWORKS are set.
  [[nodiscard]] Result<void> set_proxy_ports(NetworkCookie network, const ProxyPorts& ports);

  // As last set, by this process or an earlier one; all 0 if none are.
  [[nodiscard]] ProxyPorts proxy_ports(NetworkCookie network) const;

  // The namespaces that ports are set for, kUnknownNetwork maybe among them.
  [[nodiscard]] std::vector<NetworkCookie> proxied_networks() const;

  // Nobody listens there any more. No error if none are set.
  [[nodiscard]] Result<void> remove_proxy_ports(NetworkCookie network);

  // Readable when such events wait; owned by the datapath.
  [[nodiscard]] int unserved_fd() const;

  // Hands every waiting event to `callback`; returns how many there were.
  std::size_t consume_unserved(const std::function<void(const mg_unserved&)>& callback);

  // The flow that a client at `source`:`port` (host byte order) of a network namespace has with the
  // proxy's `slot` (TCP: 0). protocol is IPPROTO_UDP or IPPROTO_TCP.
  [[nodiscard]] std::optional<DnsFlow> lookup_flow(NetworkCookie network, std::uint8_t protocol,
                                                   std::uint32_t slot, const Address& source,
                                                   std::uint16_t port) const;

  // What the maps in use hold for a destination: the sets of its address (learned, or of a prefix)
  // and those of its port (host byte order; of ICMP the type). It is open if they share a bit.
  struct DestinationPortSets {
    std::uint64_t of_address = 0;
    std::uint64_t of_port = 0;
  };
  [[nodiscard]] DestinationPortSets port_sets(std::uint32_t workload, const Address& address,
                                              std::uint8_t protocol, std::uint16_t port) const;

  // Exempts a socket of this process: never steered, never denied.
  [[nodiscard]] Result<void> mark_own_socket(int socket);

  // Readable when denial events wait; owned by the datapath.
  [[nodiscard]] int denials_fd() const;

  // Hands every waiting denial to `callback`; returns how many there were. Denials are rate limited
  // per workload; those left out are counted in Counters::events_dropped.
  std::size_t consume_denials(const std::function<void(const mg_denial&)>& callback);

  [[nodiscard]] Result<Counters> counters(std::uint32_t workload) const;

  [[nodiscard]] const Capabilities& capabilities() const;

 private:
  friend class MapReplacement;
  class Impl;
  explicit Datapath(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// New maps on their way into the place of others: copy() until it says true, then finish(). Nobody
// may write the maps meanwhile: what is written to the old ones after it was copied is lost. Gone
// without finish(), everything stays as it was. The datapath must outlive it.
class MapReplacement {
 public:
  MapReplacement(MapReplacement&&) noexcept;
  MapReplacement& operator=(MapReplacement&&) noexcept;
  ~MapReplacement();

  // The maps that are replaced.
  [[nodiscard]] const std::vector<std::string>& names() const;

  // Copies about `elements` more; true once all of them are. ENOSPC: a new map is too small for
  // what the old one holds.
  [[nodiscard]] Result<bool> copy(std::size_t elements);

  // Moves the links to programs that use the new maps, then the pins. On an error everything is as
  // it was.
  [[nodiscard]] Result<void> finish();

 private:
  friend class Datapath;
  struct State;
  explicit MapReplacement(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mapgate::datapath
