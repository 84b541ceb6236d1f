// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/datapath.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "agent/datapath/cgroup_links.h"
#include "agent/datapath/environment.h"
#include "agent/datapath/guard.h"
#include "agent/datapath/kernel_object.h"
#include "mapgate.skel.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

struct SkeletonDeleter {
  void operator()(mapgate_bpf* skeleton) const { mapgate_bpf::destroy(skeleton); }
};
using Skeleton = std::unique_ptr<mapgate_bpf, SkeletonDeleter>;

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

Result<Skeleton> open_skeleton(const Options& options) {
  LibbpfLog log;
  Skeleton skeleton(mapgate_bpf::open(nullptr));
  if (!skeleton) return std::unexpected(Error{"open the BPF programs", errno, log.first_line()});
  skeleton->rodata->test_workload = options.test_workload;
  bpf_map__set_max_entries(skeleton->maps.mg_addresses, options.max_addresses);
  bpf_map__set_max_entries(skeleton->maps.mg_prefixes, options.max_prefixes);
  bpf_map__set_max_entries(skeleton->maps.mg_ports, options.max_ports);
  bpf_map__set_max_entries(skeleton->maps.mg_dns_flows, options.max_dns_flows);
  bpf_map__set_max_entries(skeleton->maps.mg_udp_peers, options.max_udp_peers);
  return skeleton;
}

// Pins maps and programs; the result is loaded, and its maps are the pinned ones.
Result<Skeleton> load_pinned(const Options& options) {
  if (auto found = check_bpffs(options.bpffs); !found) return std::unexpected(found.error());
  if (auto made = make_directory(options.bpffs / "maps"); !made)
    return std::unexpected(made.error());
  Result<Skeleton> skeleton = open_skeleton(options);
  if (!skeleton) return skeleton;
  bpf_object* object = (*skeleton)->obj;
  if (auto set = set_map_pins(object, options.bpffs / "maps"); !set)
    return std::unexpected(set.error());
  if (auto loaded = load_object(object); !loaded) return std::unexpected(loaded.error());
  if (auto same = check_map_identity(object); !same) return std::unexpected(same.error());
  if (auto pinned = pin_programs(object, options.bpffs / "programs"); !pinned)
    return std::unexpected(pinned.error());
  return skeleton;
}

template <typename T, std::size_t N>
void swap_ports(const T (&from)[N], std::array<std::uint16_t, N>& to) {
  std::ranges::transform(from, to.begin(), ntohs);
}

template <typename T, std::size_t N>
void swap_ports(const std::array<std::uint16_t, N>& from, T (&to)[N]) {
  std::ranges::transform(from, to, htons);
}

}  // namespace

class Datapath::Impl {
 public:
  Impl(Skeleton skeleton, const Options& options, fs::path cgroup_root)
      : skeleton_(std::move(skeleton)),
        cgroup_root_(std::move(cgroup_root)),
        guard_directory_(options.bpffs / "guard"),
        links_(skeleton_->obj, options.bpffs / "links", cgroup_root_) {}

  Result<void> start(bool foreign_sockets);
  Result<std::uint64_t> attach(const fs::path& cgroup, std::uint32_t workload);
  Result<void> detach(std::uint64_t cgroup);
  std::vector<std::uint64_t> drop_dead_attachments();
  std::vector<Attachment> attachments() const;
  Result<void> set_proxy_ports(const ProxyPorts& ports);
  Result<ProxyPorts> proxy_ports() const;
  std::optional<DnsFlow> lookup_flow(const mg_dns_flow_key& key) const;
  Result<void> mark_own_socket(int socket);
  std::size_t consume_denials(const DenialCallback& callback);
  Result<Counters> counters(std::uint32_t workload) const;

  bpf_object* object() const { return skeleton_->obj; }
  int denials_fd() const { return ring_buffer__epoll_fd(denials_.get()); }
  const Capabilities& capabilities() const { return capabilities_; }

 private:
  Result<void> adopt();
  void start_guard(bool wanted);
  Result<void> bind(std::uint64_t cgroup, std::uint32_t workload);
  void forget(std::uint64_t cgroup);
  std::uint32_t bound_workload(std::uint64_t cgroup) const;

  Skeleton skeleton_;
  fs::path cgroup_root_;
  fs::path guard_directory_;
  CgroupLinks links_;
  std::set<std::uint64_t> attached_;
  const DenialCallback* denial_callback_ = nullptr;  // while consume_denials() runs
  std::unique_ptr<ring_buffer, RingBufferDeleter> denials_;
  Capabilities capabilities_;
};

Result<void> Datapath::Impl::start(bool foreign_sockets) {
  denials_.reset(ring_buffer__new(bpf_map__fd(skeleton_->maps.mg_denials), handle_denial,
                                  &denial_callback_, nullptr));
  if (!denials_) return std::unexpected(system_error("open the denials ring buffer", errno));
  start_guard(foreign_sockets);
  return adopt();
}

// Enforcement of a workload's own sockets does not depend on the guard, so its failure is told, not
// fatal.
void Datapath::Impl::start_guard(bool wanted) {
  Result<void> installed = std::unexpected(Error{"judge foreign sockets", 0, "switched off"});
  if (wanted)
    installed = install_guard(skeleton_->obj, guard_directory_, cgroup_root_);
  else if (auto removed = remove_guard(guard_directory_, cgroup_root_); !removed)
    installed = removed;
  capabilities_.foreign_sockets = installed.has_value();
  if (!installed) capabilities_.foreign_sockets_missing = installed.error().message();
}

Result<void> Datapath::Impl::adopt() {
  for (std::uint64_t cgroup : links_.pinned()) {
    if (links_.is_dead(cgroup)) {
      forget(cgroup);
      continue;
    }
    if (auto attached = links_.attach(cgroup); !attached) return attached;
    attached_.insert(cgroup);
  }
  return {};
}

Result<std::uint64_t> Datapath::Impl::attach(const fs::path& cgroup, std::uint32_t workload) {
  if (workload == 0 || workload >= MG_MAX_WORKLOADS)
    return std::unexpected(Error{"attach to " + cgroup.string(), EINVAL,
                                 "workload " + std::to_string(workload) + " is out of range"});
  Result<std::uint64_t> id = cgroup_id(cgroup_root_ / cgroup);
  if (!id) return id;
  if (!attached_.contains(*id) || !links_.is_attached(*id)) {
    // A cgroup keeps its storage when it is detached: an old identity must not show while the links
    // go up.
    (void)bind(*id, 0);
    if (auto attached = links_.attach(*id); !attached) return std::unexpected(attached.error());
    attached_.insert(*id);
  }
  if (auto bound = bind(*id, workload); !bound) return std::unexpected(bound.error());
  return id;
}

Result<void> Datapath::Impl::bind(std::uint64_t cgroup, std::uint32_t workload) {
  const mg_binding binding{.workload = workload, .reserved = 0};
  const mg_cgroup entry{.workload = workload};
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.mg_bindings), &cgroup, &binding, BPF_EXIST) !=
          0 ||
      bpf_map_update_elem(bpf_map__fd(skeleton_->maps.mg_cgroups), &cgroup, &entry, BPF_ANY) != 0)
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
  (void)bpf_map_delete_elem(bpf_map__fd(skeleton_->maps.mg_cgroups), &cgroup);
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
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.mg_bindings), &cgroup, &binding) != 0)
    return 0;
  return binding.workload;
}

std::vector<Attachment> Datapath::Impl::attachments() const {
  std::vector<Attachment> result;
  for (std::uint64_t cgroup : attached_)
    result.push_back({cgroup, bound_workload(cgroup), cgroup_path(cgroup_root_, cgroup)});
  return result;
}

Result<void> Datapath::Impl::set_proxy_ports(const ProxyPorts& ports) {
  const std::uint32_t zero = 0;
  mg_settings settings{};
  swap_ports(ports.udp4, settings.udp4);
  swap_ports(ports.udp6, settings.udp6);
  settings.tcp4 = htons(ports.tcp4);
  settings.tcp6 = htons(ports.tcp6);
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.mg_settings), &zero, &settings, BPF_ANY) != 0)
    return std::unexpected(system_error("set the proxy's ports", errno));
  return {};
}

Result<ProxyPorts> Datapath::Impl::proxy_ports() const {
  const std::uint32_t zero = 0;
  mg_settings settings{};
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.mg_settings), &zero, &settings) != 0)
    return std::unexpected(system_error("read the proxy's ports", errno));
  ProxyPorts ports;
  swap_ports(settings.udp4, ports.udp4);
  swap_ports(settings.udp6, ports.udp6);
  ports.tcp4 = ntohs(settings.tcp4);
  ports.tcp6 = ntohs(settings.tcp6);
  return ports;
}

std::optional<DnsFlow> Datapath::Impl::lookup_flow(const mg_dns_flow_key& key) const {
  mg_dns_flow flow{};
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.mg_dns_flows), &key, &flow) != 0) return {};
  DnsFlow result;
  result.workload = flow.workload;
  std::ranges::copy(flow.resolver, result.resolver.begin());
  result.port = ntohs(flow.port);
  result.cookie = flow.cookie;
  result.last_sent =
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(flow.last_sent));
  return result;
}

Result<void> Datapath::Impl::mark_own_socket(int socket) {
  mg_socket value{};
  value.flags = MG_SOCKET_OWN;
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.mg_sockets), &socket, &value, BPF_ANY) != 0)
    return std::unexpected(system_error("exempt a socket", errno));
  return {};
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
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.mg_counters), &workload, per_cpu.data()) != 0)
    return std::unexpected(system_error(step, errno));
  Counters sum{};
  for (const Counters& cpu : per_cpu) {
    sum.denied_connects += cpu.denied_connects;
    sum.denied_sends += cpu.denied_sends;
    sum.denied_packets += cpu.denied_packets;
    sum.audited += cpu.audited;
    sum.steered += cpu.steered;
    sum.events_dropped += cpu.events_dropped;
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
  Result<Skeleton> skeleton = load_pinned(options);
  if (!skeleton) return std::unexpected(skeleton.error());
  auto impl = std::make_unique<Impl>(std::move(*skeleton), options, cgroup_root);
  if (auto started = impl->start(options.foreign_sockets); !started)
    return std::unexpected(started.error());
  return Datapath(std::move(impl));
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
  const bpf_map* map = bpf_object__find_map_by_name(impl_->object(), std::string(name).c_str());
  return map == nullptr ? -1 : bpf_map__fd(map);
}

int Datapath::program_fd(std::string_view name) const {
  const bpf_program* program =
      bpf_object__find_program_by_name(impl_->object(), std::string(name).c_str());
  return program == nullptr ? -1 : bpf_program__fd(program);
}

std::uint32_t Datapath::program_id(std::string_view name) const {
  bpf_prog_info info{};
  std::uint32_t size = sizeof info;
  return bpf_obj_get_info_by_fd(program_fd(name), &info, &size) == 0 ? info.id : 0;
}

Result<void> Datapath::set_proxy_ports(const ProxyPorts& ports) {
  return impl_->set_proxy_ports(ports);
}
Result<ProxyPorts> Datapath::proxy_ports() const {
  return impl_->proxy_ports();
}

std::optional<DnsFlow> Datapath::lookup_flow(std::uint8_t protocol, std::uint32_t slot,
                                             const Address& source, std::uint16_t port) const {
  mg_dns_flow_key key{};
  std::ranges::copy(source, key.source);
  key.port = htons(port);
  key.protocol = protocol;
  key.slot = static_cast<std::uint8_t>(slot);
  return impl_->lookup_flow(key);
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
