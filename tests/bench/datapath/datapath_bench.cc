// SPDX-License-Identifier: Apache-2.0
// What the datapath costs: the egress program per packet, and all programs per connect(). One JSON
// object a line on stdout, lines for people on stderr.
#include <bpf/bpf.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "agent/datapath/datapath.h"
#include "agent/unique_fd.h"
#include "bare_lookup.skel.h"
#include "tests/bench/report.h"
#include "tests/support/child.h"
#include "tests/support/network.h"
#include "tests/support/requirements.h"
#include "tests/support/temporary_bpffs.h"
#include "tests/support/temporary_cgroup.h"

namespace mapgate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kWorkload = 7;
constexpr std::uint16_t kPort = 443;
constexpr std::uint32_t kMillion = 1'000'000;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

// A ratio over the aim is a finding, not a failure: whoever reads the lines decides.
void report(const char* name, double value, const char* unit, const char* aim, const char* peer,
            double peer_value) {
  const double ratio = value / peer_value;
  bench::report({"datapath", name, value, unit, aim, peer, ratio});
  std::fprintf(stderr, "datapath %-10s %8.1f %s; %s %.1f %s; ratio %.2f\n", name, value, unit, peer,
               peer_value, unit, ratio);
}

datapath::Datapath open_datapath(const std::filesystem::path& bpffs,
                                 const std::filesystem::path& cgroup_root,
                                 std::uint32_t test_workload) {
  datapath::Options options;
  options.bpffs = bpffs / "mapgate";
  options.cgroup_root = cgroup_root;
  options.sizes.addresses = 1u << 20;
  options.test_workload = test_workload;
  auto opened = datapath::Datapath::open(options);
  if (!opened) fail(opened.error().message());
  return std::move(*opened);
}

template <typename Key, typename Value>
void write_row(int map, const Key& key, const Value& value) {
  if (bpf_map_update_elem(map, &key, &value, BPF_ANY) != 0) fail("cannot write a row");
}

void configure(const datapath::Datapath& datapath) {
  write_row(datapath.map_fd(datapath::kWorkloadsMap), kWorkload, mg_workload{MG_MODE_ENFORCE, 0});
  mg_port_key port{};
  port.prefixlen = 64;
  port.workload = kWorkload;
  port.protocol = htons(IPPROTO_TCP);
  port.port = htons(kPort);
  write_row(datapath.map_fd(datapath::kPortsMap), port, mg_port_sets{1});
}

// The n-th learned address: 10.0.0.0 + n.
mg_address_key address_key(std::uint32_t number) {
  mg_address_key key{};
  key.workload = kWorkload;
  key.address[10] = key.address[11] = 0xff;
  const std::uint32_t ipv4 = htonl(0x0a000000u + number);
  std::memcpy(&key.address[12], &ipv4, sizeof ipv4);
  return key;
}

// Fills the map up to `count` addresses.
void learn(int map, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t number = first; number < count; ++number)
    write_row(map, address_key(number), mg_port_sets{1});
}

// A TCP SYN to the first address.
std::array<std::uint8_t, 54> syn() {
  std::array<std::uint8_t, 54> packet{};
  packet[12] = 0x08;  // Ethernet: IPv4
  packet[14] = 0x45;  // version 4, 20 bytes
  packet[17] = 40;    // total length
  packet[22] = 64;    // time to live
  packet[23] = IPPROTO_TCP;
  const mg_address_key to = address_key(0);
  std::copy(to.address + 12, to.address + 16, packet.begin() + 30);
  packet[36] = kPort >> 8;
  packet[37] = kPort & 0xff;
  packet[46] = 0x50;  // 20 bytes of header
  packet[47] = 0x02;  // SYN
  return packet;
}

// CPU time of this thread, in ns: other load on the machine does not show in it.
double cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// ns a run.
double run_program(int program, std::uint32_t expected) {
  constexpr int kRepeat = 500'000;
  const auto packet = syn();
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = packet.data();
  options.data_size_in = packet.size();
  options.repeat = kRepeat;
  const double start = cpu_time();
  if (bpf_prog_test_run_opts(program, &options) != 0) fail("cannot run a program");
  const double elapsed = cpu_time() - start;
  if (options.retval != expected) fail("the program gave another verdict than expected");
  return elapsed / kRepeat;
}

struct BareLookupDeleter {
  void operator()(bare_lookup_bpf* skeleton) const { bare_lookup_bpf::destroy(skeleton); }
};
using BareLookup = std::unique_ptr<bare_lookup_bpf, BareLookupDeleter>;

BareLookup load_bare_lookup(const datapath::Datapath& datapath) {
  BareLookup bare(bare_lookup_bpf::open(nullptr));
  if (!bare) fail("cannot open the bare lookup");
  const mg_address_key key = address_key(0);
  std::memcpy(&bare->rodata->looked_up, &key, sizeof key);
  if (bpf_map__reuse_fd(bare->maps.mg_addresses, datapath.map_fd(datapath::kAddressesMap)) != 0 ||
      bare_lookup_bpf::load(bare.get()) != 0)
    fail("cannot load the bare lookup");
  return bare;
}

void bench_egress() {
  constexpr int kRounds = 15;
  struct Case {
    const char* name;
    std::uint32_t rows;
    const char* aim;
  };
  test::TemporaryBpffsDirectory bpffs;
  const test::TemporaryCgroup root;
  const datapath::Datapath datapath = open_datapath(bpffs.path(), root.directory(), kWorkload);
  configure(datapath);
  const BareLookup bare = load_bare_lookup(datapath);
  const int egress_program = datapath.program_fd("mg_egress");
  const int bare_program = bpf_program__fd(bare->progs.bare_lookup);
  std::uint32_t rows = 0;
  // Without a row the packet is denied, counted, and (seldom, being rate limited) reported.
  for (const Case& one : {Case{"egress_0", 0, ""}, Case{"egress_1k", 1000, "ratio <= 2"},
                          Case{"egress_1m", kMillion, "ratio <= 2"}}) {
    learn(datapath.map_fd(datapath::kAddressesMap), rows, one.rows);
    rows = one.rows;
    const std::uint32_t verdict = rows > 0 ? 1 : 0;
    std::vector<double> egress_times, bare_times;
    for (int round = 0; round < kRounds; ++round) {
      egress_times.push_back(run_program(egress_program, verdict));
      bare_times.push_back(run_program(bare_program, verdict));
    }
    report(one.name, bench::median(egress_times), "ns/packet", one.aim, "bare lookup",
           bench::median(bare_times));
  }
}

// us of each connect(); accepts and resets every connection, so that none lingers.
std::vector<double> time_connects(const test::Endpoint& to, int listener, int count) {
  std::vector<double> times;
  const linger reset{.l_onoff = 1, .l_linger = 0};
  for (int i = 0; i < count; ++i) {
    UniqueFd client(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    (void)::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    const auto start = Clock::now();
    if (::connect(client.get(), to.address(), to.size()) != 0) fail(std::strerror(errno));
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    UniqueFd accepted(::accept(listener, nullptr, nullptr));
  }
  return times;
}

// A process in a cgroup that times connects on demand.
class Connector {
 public:
  Connector(const test::TemporaryCgroup& cgroup, const test::Endpoint& to, int listener)
      : pipes_(make_pipes()), child_([&] { return serve(cgroup, to, listener); }) {}
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  ~Connector() {
    for (int fd : pipes_) ::close(fd);
  }

  // The median of one round, in us.
  double round() {
    double value = 0;
    if (::write(pipes_[1], "r", 1) != 1 || ::read(pipes_[2], &value, sizeof value) != sizeof value)
      fail("the connecting process died");
    return value;
  }

 private:
  static std::array<int, 4> make_pipes() {
    std::array<int, 4> pipes{};
    if (::pipe(pipes.data()) != 0 || ::pipe(pipes.data() + 2) != 0) fail("pipe");
    return pipes;
  }
  int serve(const test::TemporaryCgroup& cgroup, const test::Endpoint& to, int listener) {
    constexpr int kConnects = 300;
    if (int error = cgroup.enter()) return error;
    ::close(pipes_[1]);
    char byte = 0;
    while (::read(pipes_[0], &byte, 1) == 1) {
      const double value = bench::median(time_connects(to, listener, kConnects));
      if (::write(pipes_[3], &value, sizeof value) != sizeof value) return EPIPE;
    }
    return 0;
  }

  std::array<int, 4> pipes_;  // request read and write end, result read and write end
  test::Child child_;
};

void bench_connect() {
  constexpr int kRounds = 25;
  test::NetworkNamespace network({"10.0.0.0"});
  test::TemporaryBpffsDirectory bpffs;
  // The guard is attached to what it takes for the root; the process without programs is outside of
  // that.
  const test::TemporaryCgroup plain, root;
  const test::TemporaryCgroup enforced(root.path());
  datapath::Datapath datapath = open_datapath(bpffs.path(), root.directory(), 0);
  configure(datapath);
  learn(datapath.map_fd(datapath::kAddressesMap), 0, 1000);
  if (auto attached = datapath.attach(enforced.directory(), kWorkload); !attached)
    fail(attached.error().message());
  const test::Endpoint to("10.0.0.0", kPort);
  const UniqueFd listener = test::serve(SOCK_STREAM, to);
  Connector with(enforced, to, listener.get()), without(plain, to, listener.get());
  std::vector<double> with_times, without_times;
  for (int round = 0; round < kRounds; ++round) {
    with_times.push_back(with.round());
    without_times.push_back(without.round());
  }
  report("connect", bench::median(with_times), "us", "ratio <= 1.1", "without programs",
         bench::median(without_times));
}

}  // namespace
}  // namespace mapgate

int main() {
  if (const std::string missing = mapgate::test::missing_for_bpf(); !missing.empty()) {
    std::fprintf(stderr, "datapath bench: %s\n", missing.c_str());
    return 1;
  }
  try {
    mapgate::bench_egress();
    mapgate::bench_connect();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "datapath bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
