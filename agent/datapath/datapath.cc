// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/datapath.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_lock.h>

#include "agent/datapath/cgroup_links.h"
#include "agent/datapath/environment.h"
#include "agent/datapath/found_maps.h"
#include "agent/datapath/kernel_object.h"
#include "agent/datapath/map_copy.h"
#include "agent/datapath/next_generation.h"
#include "agent/datapath/object_pins.h"
#include "agent/datapath/program_set.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

struct RingBufferDeleter {
  void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
};

using DenialCallback = std::function<void(const mg_denial&)>;

int handle_denial(void* context, void* data, std::size_t size) {
  const auto* callback = *static_cast<const DenialCallback* const*>(context);
  if (callback != nullptr && size >= sizeof(mg_denial))
    (*callback)(*static_cast<const mg_denial*>(data));
  return 0;
}

using UnservedCallback = std::function<void(const mg_unserved&)>;

int handle_unserved(void* context, void* data, std::size_t size) {
  const auto* callback = *static_cast<const UnservedCallback* const*>(context);
  if (callback != nullptr && size >= sizeof(mg_unserved))
    (*callback)(*static_cast<const mg_unserved*>(data));
  return 0;
}

constexpr std::size_t kCopySlice = 4096;

Result<void> copy_all(std::vector<MapCopy>& copies) {
  for (MapCopy& copy : copies)
    for (bool done = false; !done;) {
      const auto more = copy.next(kCopySlice);
      if (!more) return std::unexpected(more.error());
      done = *more;
    }
  return {};
}

// What the daemon writes all the time. Whoever has these has the rest.
constexpr std::array kLockedMaps{kWorkloadsMap, kAddressesMap, kPrefixesMap, kPortsMap};

// Adds the locks that are not among `locks` so far.
Result<void> lock_maps(const FoundMaps& found, const fs::path& bpffs,
                       std::vector<maps::MapLock>& locks) {
  for (const std::string_view name : kLockedMaps) {
    const maps::Map* map = found.find(std::string(name));
    if (map == nullptr || std::ranges::any_of(locks, [&](const maps::MapLock& held) {
          return held.map_id() == map->info().id;
        }))
      continue;
    auto lock = maps::MapLock::acquire(*map);
    if (!lock)
      return std::unexpected(
          Error{"use " + (bpffs / "maps" / name).string(), lock.error().code, lock.error().reason});
    locks.push_back(std::move(*lock));
  }
  return {};
}

mg_proxy to_kernel(const ProxyPorts& ports) {
  mg_proxy proxy{};
  std::ranges::transform(ports.udp4, proxy.udp4, htons);
  std::ranges::transform(ports.udp6, proxy.udp6, htons);
  proxy.tcp4 = htons(ports.tcp4);
  proxy.tcp6 = htons(ports.tcp6);
  return proxy;
}

ProxyPorts from_kernel(const mg_proxy& proxy) {
  ProxyPorts ports;
  std::ranges::transform(proxy.udp4, ports.udp4.begin(), ntohs);
  std::ranges::transform(proxy.udp6, ports.udp6.begin(), ntohs);
  ports.tcp4 = ntohs(proxy.tcp4);
  ports.tcp6 = ntohs(proxy.tcp6);
  return ports;
}

static_assert(sizeof(mg_proxy_port) == sizeof(std::uint32_t));

std::vector<mg_proxy_port> ports_of(const mg_proxy& proxy) {
  std::vector<mg_proxy_port> result{{proxy.tcp4, IPPROTO_TCP, 1}, {proxy.tcp6, IPPROTO_TCP, 0}};
  for (const auto port : proxy.udp4) result.push_back({port, IPPROTO_UDP, 1});
  for (const auto port : proxy.udp6) result.push_back({port, IPPROTO_UDP, 0});
  std::erase_if(result, [](const mg_proxy_port& port) { return port.port == 0; });
  return result;
}

}  // namespace

class Datapath::Impl {
 public:
  Impl(NextGeneration first, std::vector<maps::MapLock> locks, const Options& options,
       fs::path cgroup_root)
      : options_(options),
        cgroup_root_(std::move(cgroup_root)),
        set_(std::move(first.set)),
        locks_(std::move(locks)),
        unfilled_(std::move(first.unfilled)),
        links_(set_.object(), options.bpffs / "links", cgroup_root_),
        guard_links_(set_.guard(), options.bpffs / "guard", cgroup_root_),
        pins_(options.bpffs) {}

  Result<void> start();
  Result<void> switch_over();
  Result<NextGeneration> prepare_replacement(const Options& options,
                                             const std::vector<std::string>& names) const;
  Result<void> replace(NextGeneration& next, const Options& options);
  Inspection inspect(std::size_t max_cgroups);

  Result<std::uint64_t> attach(const fs::path& cgroup, std::uint32_t workload);
  Result<void> detach(std::uint64_t cgroup);
  std::vector<std::uint64_t> drop_dead_attachments();
  std::vector<Attachment> attachments() const;
  Result<void> set_proxy_ports(NetworkCookie network, const ProxyPorts& ports);
  Result<void> remove_proxy_ports(NetworkCookie network);
  ProxyPorts proxy_ports(NetworkCookie network) const;
  std::vector<NetworkCookie> proxied_networks() const;
  std::optional<DnsFlow> lookup_flow(const mg_dns_flow_key& key) const;
  DestinationPortSets port_sets(std::uint32_t workload, const Address& address,
                                std::uint8_t protocol, std::uint16_t port) const;
  Result<void> mark_own_socket(int socket);
  std::size_t consume_denials(const DenialCallback& callback);
  std::size_t consume_unserved(const UnservedCallback& callback);
  Result<Counters> counters(std::uint32_t workload) const;

  const Options& options() const { return options_; }
  const ProgramSet& programs() const { return set_; }
  bool awaits_contents() const { return !unfilled_.empty(); }
  int denials_fd() const { return ring_buffer__epoll_fd(denials_.get()); }
  int unserved_fd() const { return ring_buffer__epoll_fd(unserved_.get()); }
  const Capabilities& capabilities() const { return capabilities_; }

 private:
  Result<void> load_proxies();
  void drop_unused_ports();
  void drop_old_locks();
  Result<void> switch_guard();
  Result<void> move_links(bpf_object* programs, bpf_object* guard);
  void inspect_maps(Inspection& inspection) const;
  void inspect_links(std::size_t max_cgroups, Inspection& inspection);
  Result<void> bind(std::uint64_t cgroup, std::uint32_t workload);
  void forget(std::uint64_t cgroup);
  std::uint32_t bound_workload(std::uint64_t cgroup) const;
  const auto& kernel_maps() const { return set_.skeleton().maps; }

  Options options_;
  fs::path cgroup_root_;
  ProgramSet set_;
  std::vector<maps::MapLock> locks_;
  std::vector<std::string> unfilled_;
  CgroupLinks links_;
  CgroupLinks guard_links_;  // of the root cgroup, if there is a guard
  std::uint64_t root_ = 0;   // its id
  ObjectPins pins_;
  std::set<std::uint64_t> attached_;
  std::uint64_t last_inspected_ = 0;
  const DenialCallback* denial_callback_ = nullptr;  // while consume_denials() runs
  std::unique_ptr<ring_buffer, RingBufferDeleter> denials_;
  const UnservedCallback* unserved_callback_ = nullptr;  // while consume_unserved() runs
  std::unique_ptr<ring_buffer, RingBufferDeleter> unserved_;
  std::map<NetworkCookie, ProxyPorts> proxies_;  // what mg_proxies holds
  Capabilities capabilities_;
};

Result<void> Datapath::Impl::start() {
  denials_.reset(ring_buffer__new(bpf_map__fd(kernel_maps().mg_denials), handle_denial,
                                  &denial_callback_, nullptr));
  if (!denials_) return std::unexpected(system_error("open the denials ring buffer", errno));
  unserved_.reset(ring_buffer__new(bpf_map__fd(kernel_maps().mg_unserved), handle_unserved,
                                   &unserved_callback_, nullptr));
  if (!unserved_) return std::unexpected(system_error("open a ring buffer", errno));
  if (auto loaded = load_proxies(); !loaded) return loaded;
  Result<std::uint64_t> root = cgroup_id(cgroup_root_);
  if (!root) return std::unexpected(root.error());
  root_ = *root;
  if (auto locked = lock_maps(FoundMaps(set_.object()), options_.bpffs, locks_); !locked)
    return locked;
  for (std::uint64_t cgroup : links_.pinned()) {
    if (links_.is_dead(cgroup)) {
      forget(cgroup);
      continue;
    }
    links_.hold(cgroup);
    attached_.insert(cgroup);
  }
  return awaits_contents() && !attached_.empty() ? Result<void>() : switch_over();
}

// In this order: a process that is killed on the way leaves links and pins of which all maps hold
// the same, and the next one takes those that are pinned.
Result<void> Datapath::Impl::switch_over() {
  for (std::uint64_t cgroup : std::set(attached_)) {
    auto attached = links_.attach(cgroup);
    if (attached) continue;
    if (!links_.is_dead(cgroup)) return attached;
    forget(cgroup);
  }
  if (auto switched = switch_guard(); !switched) return switched;
  if (auto pinned = pins_.pin(set_.object()); !pinned) return pinned;
  unfilled_.clear();
  drop_old_locks();
  return {};
}

void Datapath::Impl::drop_old_locks() {
  const FoundMaps own(set_.object());
  std::erase_if(locks_, [&](const maps::MapLock& lock) {
    return std::ranges::none_of(kLockedMaps, [&](std::string_view name) {
      const maps::Map* map = own.find(std::string(name));
      return map != nullptr && map->info().id == lock.map_id();
    });
  });
}

// Enforcement of a workload's own sockets does not depend on the guard, so its failure is told, not
// fatal.
Result<void> Datapath::Impl::switch_guard() {
  capabilities_.foreign_sockets_missing = set_.guard_missing();
  if (set_.guard() != nullptr)
    if (auto attached = guard_links_.attach(root_); !attached)
      capabilities_.foreign_sockets_missing = attached.error().message();
  capabilities_.foreign_sockets = capabilities_.foreign_sockets_missing.empty();
  // One on other maps would deny what is allowed.
  return capabilities_.foreign_sockets ? Result<void>() : guard_links_.remove(root_);
}

Result<NextGeneration> Datapath::Impl::prepare_replacement(
    const Options& options, const std::vector<std::string>& names) const {
  if (awaits_contents())
    return std::unexpected(Error{"replace maps", EBUSY, "maps of a new layout are being filled"});
  auto next = load_next_generation(options, FoundMaps(set_.object()), names);
  if (next && capabilities_.foreign_sockets && next->set.guard() == nullptr)
    return std::unexpected(Error{"replace maps", 0, next->set.guard_missing()});
  return next;
}

Result<void> Datapath::Impl::move_links(bpf_object* programs, bpf_object* guard) {
  if (auto moved = links_.use(programs); !moved) return moved;
  if (!capabilities_.foreign_sockets) return {};
  auto moved = guard_links_.use(guard);
  if (moved) return moved;
  if (auto back = links_.use(set_.object()); !back)
    moved.error().text += "; and back: " + back.error().message();
  return moved;
}

Result<void> Datapath::Impl::replace(NextGeneration& next, const Options& options) {
  if (auto locked = lock_maps(FoundMaps(next.set.object()), options_.bpffs, locks_); !locked)
    return locked;
  if (auto moved = move_links(next.set.object(), next.set.guard()); !moved) return moved;
  if (auto pinned = pins_.pin(next.set.object()); !pinned) {
    for (const auto& back : {pins_.pin(set_.object()), move_links(set_.object(), set_.guard())})
      if (!back) pinned.error().text += "; and back: " + back.error().message();
    return pinned;
  }
  set_ = std::move(next.set);
  options_ = options;
  drop_old_locks();
  return {};
}

Inspection Datapath::Impl::inspect(std::size_t max_cgroups) {
  Inspection inspection;
  if (awaits_contents()) return inspection;
  inspection.repaired = pins_.repair(inspection.problems);
  inspect_maps(inspection);
  inspect_links(max_cgroups, inspection);
  return inspection;
}

void Datapath::Impl::inspect_maps(Inspection& inspection) const {
  for (const bpf_map* map : set_.maps()) {
    const std::string name = bpf_map__name(map);
    if (!is_frozen(bpf_map__fd(map))) continue;
    inspection.problems.push_back("map " + name + " is frozen: nothing can be written to it");
    if (is_replaceable(name)) inspection.frozen.push_back(name);
  }
}

void Datapath::Impl::inspect_links(std::size_t max_cgroups, Inspection& inspection) {
  const auto append = [&](std::vector<std::string> lines) {
    std::ranges::move(lines, std::back_inserter(inspection.repaired));
  };
  if (capabilities_.foreign_sockets) append(guard_links_.repair(root_, inspection.problems));
  for (std::size_t i = 0; i < std::min(max_cgroups, attached_.size()); ++i) {
    auto next = attached_.upper_bound(last_inspected_);
    if (next == attached_.end()) next = attached_.begin();
    last_inspected_ = *next;
    append(links_.repair(*next, inspection.problems));
  }
}

Result<std::uint64_t> Datapath::Impl::attach(const fs::path& cgroup, std::uint32_t workload) {
  if (workload == 0 || workload >= MG_MAX_WORKLOADS)
    return std::unexpected(Error{"attach to " + cgroup.string(), EINVAL,
                                 "workload " + std::to_string(workload) + " is out of range"});
  Result<std::uint64_t> id = cgroup_id(cgroup_root_ / cgroup);
  if (!id) return id;
  const bool is_new = !attached_.contains(*id);
  // A cgroup keeps its storage when it is detached: an old identity must not show while the links
  // go up.
  if (is_new) (void)bind(*id, 0);
  if (is_new || (!links_.is_attached(*id) && !awaits_contents())) {
    if (auto attached = links_.attach(*id); !attached) return std::unexpected(attached.error());
    attached_.insert(*id);
  }
  if (auto bound = bind(*id, workload); !bound) return std::unexpected(bound.error());
  return id;
}

Result<void> Datapath::Impl::bind(std::uint64_t cgroup, std::uint32_t workload) {
  const mg_binding binding{.workload = workload, .reserved = 0};
  const mg_cgroup entry{.workload = workload};
  if (bpf_map_update_elem(bpf_map__fd(kernel_maps().mg_bindings), &cgroup, &binding, BPF_EXIST) !=
          0 ||
      bpf_map_update_elem(bpf_map__fd(kernel_maps().mg_cgroups), &cgroup, &entry, BPF_ANY) != 0)
    return std::unexpected(system_error("bind cgroup " + std::to_string(cgroup), errno));
  return {};
}

Result<void> Datapath::Impl::detach(std::uint64_t cgroup) {
  if (!attached_.contains(cgroup))
    return std::unexpected(
        Error{"detach cgroup " + std::to_string(cgroup), ENOENT, "it is not attached"});
  if (auto removed = links_.remove(cgroup); !removed) return removed;
  forget(cgroup);
  return {};
}

void Datapath::Impl::forget(std::uint64_t cgroup) {
  // Whatever fails here concerns a cgroup that is gone or no longer judged.
  (void)links_.remove(cgroup);
  (void)bpf_map_delete_elem(bpf_map__fd(kernel_maps().mg_cgroups), &cgroup);
  attached_.erase(cgroup);
}

std::vector<std::uint64_t> Datapath::Impl::drop_dead_attachments() {
  std::vector<std::uint64_t> dead;
  std::ranges::copy_if(attached_, std::back_inserter(dead),
                       [&](std::uint64_t cgroup) { return links_.is_dead(cgroup); });
  for (std::uint64_t cgroup : dead) forget(cgroup);
  return dead;
}

std::uint32_t Datapath::Impl::bound_workload(std::uint64_t cgroup) const {
  mg_binding binding{};
  if (bpf_map_lookup_elem(bpf_map__fd(kernel_maps().mg_bindings), &cgroup, &binding) != 0) return 0;
  return binding.workload;
}

std::vector<Attachment> Datapath::Impl::attachments() const {
  std::vector<Attachment> result;
  for (std::uint64_t cgroup : attached_)
    result.push_back({cgroup, bound_workload(cgroup), cgroup_path(cgroup_root_, cgroup)});
  return result;
}

Result<void> Datapath::Impl::load_proxies() {
  const int map = bpf_map__fd(kernel_maps().mg_proxies);
  NetworkCookie network = 0;
  for (const NetworkCookie* previous = nullptr; bpf_map_get_next_key(map, previous, &network) == 0;
       previous = &network) {
    mg_proxy proxy{};
    if (bpf_map_lookup_elem(map, &network, &proxy) == 0) proxies_[network] = from_kernel(proxy);
  }
  return errno == ENOENT ? Result<void>()
                         : std::unexpected(system_error("read the proxy's ports", errno));
}

// Ports are known as such before a namespace has them in use, and after.
Result<void> Datapath::Impl::set_proxy_ports(NetworkCookie network, const ProxyPorts& ports) {
  const mg_proxy proxy = to_kernel(ports);
  const std::uint32_t used = 1;
  for (const mg_proxy_port& port : ports_of(proxy))
    if (bpf_map_update_elem(bpf_map__fd(kernel_maps().mg_proxy_ports), &port, &used, BPF_ANY) != 0)
      return std::unexpected(system_error("set the proxy's ports", errno));
  if (bpf_map_update_elem(bpf_map__fd(kernel_maps().mg_proxies), &network, &proxy, BPF_ANY) != 0)
    return std::unexpected(system_error("set the proxy's ports", errno));
  proxies_[network] = ports;
  drop_unused_ports();
  return {};
}

Result<void> Datapath::Impl::remove_proxy_ports(NetworkCookie network) {
  if (bpf_map_delete_elem(bpf_map__fd(kernel_maps().mg_proxies), &network) != 0 && errno != ENOENT)
    return std::unexpected(system_error("remove the proxy's ports", errno));
  proxies_.erase(network);
  drop_unused_ports();
  return {};
}

void Datapath::Impl::drop_unused_ports() {
  std::set<std::uint32_t> used;
  for (const auto& [network, ports] : proxies_)
    for (const mg_proxy_port& port : ports_of(to_kernel(ports)))
      used.insert(std::bit_cast<std::uint32_t>(port));
  const int map = bpf_map__fd(kernel_maps().mg_proxy_ports);
  std::vector<std::uint32_t> unused;
  std::uint32_t port = 0;
  for (const std::uint32_t* previous = nullptr; bpf_map_get_next_key(map, previous, &port) == 0;
       previous = &port)
    if (!used.contains(port)) unused.push_back(port);
  // One that stays is taken for a port of the proxy's in doubt only.
  for (const std::uint32_t key : unused) (void)bpf_map_delete_elem(map, &key);
}

ProxyPorts Datapath::Impl::proxy_ports(NetworkCookie network) const {
  const auto found = proxies_.find(network);
  return found == proxies_.end() ? ProxyPorts{} : found->second;
}

std::vector<NetworkCookie> Datapath::Impl::proxied_networks() const {
  std::vector<NetworkCookie> result;
  for (const auto& [network, ports] : proxies_) result.push_back(network);
  return result;
}

std::optional<DnsFlow> Datapath::Impl::lookup_flow(const mg_dns_flow_key& key) const {
  mg_dns_flow flow{};
  if (bpf_map_lookup_elem(bpf_map__fd(kernel_maps().mg_dns_flows), &key, &flow) != 0) return {};
  DnsFlow result;
  result.workload = flow.workload;
  std::ranges::copy(flow.resolver, result.resolver.begin());
  result.port = ntohs(flow.port);
  result.cookie = flow.cookie;
  result.last_sent =
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(flow.last_sent));
  return result;
}

// As judge() of bpf/verdict.bpf.h.
Datapath::DestinationPortSets Datapath::Impl::port_sets(std::uint32_t workload,
                                                        const Address& address,
                                                        std::uint8_t protocol,
                                                        std::uint16_t port) const {
  const auto find = [](const bpf_map* map, const auto& key) -> std::uint64_t {
    mg_port_sets sets{};
    return bpf_map_lookup_elem(bpf_map__fd(map), &key, &sets) == 0 ? sets.port_sets : 0;
  };
  mg_address_key learned{};
  learned.workload = workload;
  std::ranges::copy(address, learned.address);
  mg_prefix_key prefix{};
  prefix.prefixlen = 8 * (sizeof prefix - sizeof prefix.prefixlen);
  prefix.workload = workload;
  std::ranges::copy(address, prefix.address);
  mg_port_key ports{};
  ports.prefixlen = 8 * (sizeof ports - sizeof ports.prefixlen);
  ports.workload = workload;
  ports.protocol = htons(protocol);
  ports.port = htons(port);
  return {.of_address =
              find(kernel_maps().mg_addresses, learned) | find(kernel_maps().mg_prefixes, prefix),
          .of_port = find(kernel_maps().mg_ports, ports)};
}

Result<void> Datapath::Impl::mark_own_socket(int socket) {
  mg_socket value{};
  value.flags = MG_SOCKET_OWN;
  if (bpf_map_update_elem(bpf_map__fd(kernel_maps().mg_sockets), &socket, &value, BPF_ANY) != 0)
    return std::unexpected(system_error("exempt a socket", errno));
  return {};
}

std::size_t Datapath::Impl::consume_unserved(const UnservedCallback& callback) {
  unserved_callback_ = &callback;
  const int consumed = ring_buffer__consume(unserved_.get());
  unserved_callback_ = nullptr;
  return consumed > 0 ? static_cast<std::size_t>(consumed) : 0;
}

std::size_t Datapath::Impl::consume_denials(const DenialCallback& callback) {
  denial_callback_ = &callback;
  const int consumed = ring_buffer__consume(denials_.get());
  denial_callback_ = nullptr;
  return consumed > 0 ? static_cast<std::size_t>(consumed) : 0;
}

Result<Counters> Datapath::Impl::counters(std::uint32_t workload) const {
  const std::string step = "read the counters of workload " + std::to_string(workload);
  const int cpus = libbpf_num_possible_cpus();
  if (cpus < 0) return std::unexpected(system_error(step, -cpus));
  std::vector<Counters> per_cpu(static_cast<std::size_t>(cpus));
  if (bpf_map_lookup_elem(bpf_map__fd(kernel_maps().mg_counters), &workload, per_cpu.data()) != 0)
    return std::unexpected(system_error(step, errno));
  Counters sum{};
  for (const Counters& cpu : per_cpu) {
    sum.denied_connects += cpu.denied_connects;
    sum.denied_sends += cpu.denied_sends;
    sum.denied_packets += cpu.denied_packets;
    sum.audited += cpu.audited;
    sum.steered += cpu.steered;
    sum.events_dropped += cpu.events_dropped;
    sum.unserved += cpu.unserved;
  }
  return sum;
}

Result<Datapath> Datapath::open(const Options& options) {
  fs::path cgroup_root = options.cgroup_root;
  if (cgroup_root.empty()) {
    Result<fs::path> found = find_cgroup2_root();
    if (!found) return std::unexpected(found.error());
    cgroup_root = *found;
  }
  if (auto found = check_bpffs(options.bpffs); !found) return std::unexpected(found.error());
  const FoundMaps found(options.bpffs);
  std::vector<maps::MapLock> locks;
  if (auto locked = lock_maps(found, options.bpffs, locks); !locked)
    return std::unexpected(locked.error());
  auto first = load_next_generation(options, found, {});
  if (!first) return std::unexpected(first.error());
  std::vector<MapCopy> copies = std::move(first->copies);
  auto impl = std::make_unique<Impl>(std::move(*first), std::move(locks), options, cgroup_root);
  if (auto copied = copy_all(copies); !copied) return std::unexpected(copied.error());
  if (auto started = impl->start(); !started) return std::unexpected(started.error());
  return Datapath(std::move(impl));
}

bool Datapath::awaits_contents() const {
  return impl_->awaits_contents();
}
Result<void> Datapath::switch_over() {
  return impl_->switch_over();
}
const MapSizes& Datapath::sizes() const {
  return impl_->options().sizes;
}
Inspection Datapath::inspect(std::size_t max_cgroups) {
  return impl_->inspect(max_cgroups);
}

struct MapReplacement::State {
  Datapath::Impl& datapath;
  Options options;
  NextGeneration next;
  std::size_t copied = 0;  // maps
};

Result<MapReplacement> Datapath::replace_maps(const MapSizes& sizes,
                                              const std::vector<std::string>& names) {
  Options options = impl_->options();
  options.sizes = sizes;
  auto next = impl_->prepare_replacement(options, names);
  if (!next) return std::unexpected(next.error());
  return MapReplacement(std::make_unique<MapReplacement::State>(
      MapReplacement::State{*impl_, options, std::move(*next)}));
}

MapReplacement::MapReplacement(std::unique_ptr<State> state) : state_(std::move(state)) {}
MapReplacement::MapReplacement(MapReplacement&&) noexcept = default;
MapReplacement& MapReplacement::operator=(MapReplacement&&) noexcept = default;
MapReplacement::~MapReplacement() = default;

const std::vector<std::string>& MapReplacement::names() const {
  return state_->next.replaced;
}

Result<bool> MapReplacement::copy(std::size_t elements) {
  std::vector<MapCopy>& copies = state_->next.copies;
  if (state_->copied == copies.size()) return true;
  const auto done = copies[state_->copied].next(elements);
  if (!done) return done;
  if (*done) ++state_->copied;
  return state_->copied == copies.size();
}

Result<void> MapReplacement::finish() {
  return state_->datapath.replace(state_->next, state_->options);
}

Datapath::Datapath(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Datapath::Datapath(Datapath&&) noexcept = default;
Datapath& Datapath::operator=(Datapath&&) noexcept = default;
Datapath::~Datapath() = default;

Result<std::uint64_t> Datapath::attach(const fs::path& cgroup, std::uint32_t workload) {
  return impl_->attach(cgroup, workload);
}
Result<void> Datapath::detach(std::uint64_t cgroup) {
  return impl_->detach(cgroup);
}
std::vector<std::uint64_t> Datapath::drop_dead_attachments() {
  return impl_->drop_dead_attachments();
}
std::vector<Attachment> Datapath::attachments() const {
  return impl_->attachments();
}

int Datapath::map_fd(std::string_view name) const {
  return impl_->programs().map_fd(name);
}

int Datapath::program_fd(std::string_view name) const {
  const bpf_program* program =
      bpf_object__find_program_by_name(impl_->programs().object(), std::string(name).c_str());
  return program == nullptr ? -1 : bpf_program__fd(program);
}

std::uint32_t Datapath::program_id(std::string_view name) const {
  bpf_prog_info info{};
  std::uint32_t size = sizeof info;
  return bpf_obj_get_info_by_fd(program_fd(name), &info, &size) == 0 ? info.id : 0;
}

Result<void> Datapath::set_proxy_ports(NetworkCookie network, const ProxyPorts& ports) {
  return impl_->set_proxy_ports(network, ports);
}
ProxyPorts Datapath::proxy_ports(NetworkCookie network) const {
  return impl_->proxy_ports(network);
}
std::vector<NetworkCookie> Datapath::proxied_networks() const {
  return impl_->proxied_networks();
}
Result<void> Datapath::remove_proxy_ports(NetworkCookie network) {
  return impl_->remove_proxy_ports(network);
}
int Datapath::unserved_fd() const {
  return impl_->unserved_fd();
}
std::size_t Datapath::consume_unserved(const UnservedCallback& callback) {
  return impl_->consume_unserved(callback);
}

std::optional<DnsFlow> Datapath::lookup_flow(NetworkCookie network, std::uint8_t protocol,
                                             std::uint32_t slot, const Address& source,
                                             std::uint16_t port) const {
  mg_dns_flow_key key{};
  key.network = network;
  std::ranges::copy(source, key.source);
  key.port = htons(port);
  key.protocol = protocol;
  key.slot = static_cast<std::uint8_t>(slot);
  return impl_->lookup_flow(key);
}

Datapath::DestinationPortSets Datapath::port_sets(std::uint32_t workload, const Address& address,
                                                  std::uint8_t protocol, std::uint16_t port) const {
  return impl_->port_sets(workload, address, protocol, port);
}

Result<void> Datapath::mark_own_socket(int socket) {
  return impl_->mark_own_socket(socket);
}
int Datapath::denials_fd() const {
  return impl_->denials_fd();
}
std::size_t Datapath::consume_denials(const DenialCallback& callback) {
  return impl_->consume_denials(callback);
}
Result<Counters> Datapath::counters(std::uint32_t workload) const {
  return impl_->counters(workload);
}
const Capabilities& Datapath::capabilities() const {
  return impl_->capabilities();
}

}  // namespace mapgate::datapath
