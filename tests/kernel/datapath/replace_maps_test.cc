// SPDX-License-Identifier: Apache-2.0
// Maps that get another size or layout, and the workload that must not notice.
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <thread>

#include "agent/datapath/cgroup_links.h"
#include "agent/datapath/environment.h"
#include "agent/datapath/object_pins.h"
#include "agent/datapath/program_set.h"
#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Endpoint;

constexpr std::array kDesiredMaps{kWorkloadsMap, kAddressesMap, kPrefixesMap, kPortsMap};

using Contents = std::map<std::vector<char>, std::vector<char>>;

Contents contents_of(int fd) {
  const bpf_map_info info = info_of(fd);
  Contents contents;
  std::vector<char> key(info.key_size), value(info.value_size);
  const void* previous = nullptr;
  while (bpf_map_get_next_key(fd, previous, key.data()) == 0) {
    EXPECT_EQ(bpf_map_lookup_elem(fd, key.data(), value.data()), 0);
    contents[key] = value;
    previous = key.data();
  }
  return contents;
}

class ReplaceMapsTest : public EnforcedWorkloadTest {
 protected:
  void SetUp() override {
    EnforcedWorkloadTest::SetUp();
    if (datapath_) add_prefix(kIpv4World.other, 32, kFirstSet);
  }

  void learn_many(int count) {
    for (int i = 0; i < count; ++i)
      learn("198.18." + std::to_string(i / 256) + "." + std::to_string(i % 256), kFirstSet);
  }

  [[nodiscard]] Options sized(std::uint32_t addresses) const {
    Options other = options();
    other.sizes = {.addresses = addresses, .prefixes = addresses / 2, .ports = addresses / 4};
    return other;
  }

  // With small slices, so that there is a middle to be killed in.
  [[nodiscard]] static Result<void> replace(Datapath& datapath, const MapSizes& sizes,
                                            const std::vector<std::string>& names = {}) {
    auto replacement = datapath.replace_maps(sizes, names);
    if (!replacement) return std::unexpected(replacement.error());
    for (;;) {
      const auto copied = replacement->copy(64);
      if (!copied) return std::unexpected(copied.error());
      if (*copied) return replacement->finish();
    }
  }

  [[nodiscard]] std::map<std::string, Contents> all_contents() const {
    std::map<std::string, Contents> all;
    for (const std::string_view name : kDesiredMaps)
      all[std::string(name)] = contents_of(datapath_->map_fd(name));
    return all;
  }

  // The pins are the maps that are written, and those that the attached programs use.
  void expect_one_set_of_maps() {
    std::map<std::string, std::uint32_t> pinned;
    for (const fs::directory_entry& entry : fs::directory_iterator(options().bpffs / "maps")) {
      UniqueFd fd(bpf_obj_get(entry.path().c_str()));
      pinned[entry.path().filename()] = info_of(fd.get()).id;
      EXPECT_EQ(info_of(datapath_->map_fd(entry.path().filename().native())).id,
                info_of(fd.get()).id)
          << entry.path();
    }
    for (const fs::directory_entry& entry :
         fs::directory_iterator(options().bpffs / "links" / std::to_string(cgroup_.id()))) {
      UniqueFd link(bpf_obj_get(entry.path().c_str()));
      bpf_link_info info{};
      std::uint32_t size = sizeof info;
      ASSERT_EQ(bpf_obj_get_info_by_fd(link.get(), &info, &size), 0);
      EXPECT_EQ(info.prog_id, datapath_->program_id(entry.path().filename().native()));
      std::array<std::uint32_t, 64> ids{};
      bpf_prog_info program{};
      program.nr_map_ids = ids.size();
      program.map_ids = reinterpret_cast<std::uint64_t>(ids.data());
      size = sizeof program;
      UniqueFd fd(bpf_prog_get_fd_by_id(info.prog_id));
      ASSERT_EQ(bpf_obj_get_info_by_fd(fd.get(), &program, &size), 0);
      for (std::uint32_t i = 0; i < program.nr_map_ids; ++i) {
        UniqueFd used(bpf_map_get_fd_by_id(ids[i]));
        const bpf_map_info map = info_of(used.get());
        if (const auto pin = pinned.find(map.name); pin != pinned.end()) {
          EXPECT_EQ(map.id, pin->second) << map.name;
        }
      }
    }
  }

  void expect_enforced() {
    EnforcedWorkloadTest::expect_enforced();
    EXPECT_EQ(send_to(kIpv4World.other), 0);
  }

  // A client that connects all the time, until it is told to stop: 0, or 101 (what is allowed was
  // denied), 102 (what is forbidden passed).
  class Client {
   public:
    explicit Client(ReplaceMapsTest& test)
        : child_(test.start_in_workload([this, &test] {
            close(stop_[1]);
            return run(test);
          })) {
      close(stop_[0]);
    }
    int stop() {
      close(stop_[1]);
      return child_.wait();
    }

   private:
    int run(ReplaceMapsTest& test) {
      alarm(120);  // sanitizers are slow
      for (;;) {
        for (int i = 0; i < 20; ++i) {
          if (udp_connect({kIpv4World.allowed, test.port_}) != 0) return 101;
          if (udp_send({kIpv4World.other, test.port_}) != 0) return 101;
          if (udp_connect({kIpv4World.forbidden, test.port_}) != EPERM) return 102;
          if (udp_send({kIpv4World.forbidden, test.port_}) != EPERM) return 102;
        }
        char byte = 0;
        if (read(stop_[0], &byte, 1) == 0) return 0;  // the other end is closed
      }
    }
    struct Pipe {
      int ends[2];
      Pipe() {
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe");
      }
      int operator[](int end) const { return ends[end]; }
    };
    Pipe stop_;
    test::Child child_;
  };
};

TEST_F(ReplaceMapsTest, ARestartWithAnotherSizeTakesEveryRowAlong) {
  learn_many(700);
  const auto before = all_contents();
  reopen(sized(4096));
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).max_entries, 4096U);
  EXPECT_EQ(info_of(datapath_->map_fd(kPrefixesMap)).max_entries, 2048U);
  EXPECT_EQ(info_of(datapath_->map_fd(kPortsMap)).max_entries, 1024U);
  EXPECT_EQ(all_contents(), before);
  expect_one_set_of_maps();
  expect_enforced();
  reopen(sized(800));
  EXPECT_EQ(all_contents(), before);
  expect_enforced();
}

TEST_F(ReplaceMapsTest, ARestartWithASizeBelowWhatIsHeldIsRefusedAndChangesNothing) {
  learn_many(699);
  const auto before = all_contents();
  datapath_.reset();
  const auto opened = Datapath::open(sized(699));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().error_number, ENOSPC);
  EXPECT_EQ(opened.error().message(),
            "copy map mg_addresses: it holds 700 entries, which do not fit into 699 "
            "(node.maps.addresses)");
  expect_enforced();
  reopen(options());
  EXPECT_EQ(all_contents(), before);
  expect_one_set_of_maps();
}

TEST_F(ReplaceMapsTest, ARunningDatapathGetsMapsOfAnotherSize) {
  learn_many(700);
  const auto before = all_contents();
  const auto replaced = replace(*datapath_, sized(4096).sizes);
  ASSERT_TRUE(replaced) << replaced.error().message();
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).max_entries, 4096U);
  EXPECT_EQ(all_contents(), before);
  expect_one_set_of_maps();
  expect_enforced();
  // What is learned from now on counts.
  learn(kIpv4World.forbidden, kFirstSet);
  EXPECT_EQ(send_to(kIpv4World.forbidden), 0);
  forget(kIpv4World.forbidden);
  // And the next one finds the new maps.
  reopen(sized(4096));
  EXPECT_EQ(all_contents(), before);
  expect_enforced();
}

TEST_F(ReplaceMapsTest, AReplacementThatDoesNotFitOrIsDroppedChangesNothing) {
  learn_many(700);
  const auto before = all_contents();
  const auto refused = replace(*datapath_, {.addresses = 100, .prefixes = 1024, .ports = 1024});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error_number, ENOSPC);
  {
    auto dropped = datapath_->replace_maps(sized(4096).sizes);
    ASSERT_TRUE(dropped) << dropped.error().message();
    EXPECT_EQ(dropped->names(), (std::vector<std::string>{"mg_addresses", "mg_prefixes"}));
    ASSERT_TRUE(dropped->copy(100));
  }
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).max_entries, 1024U);
  EXPECT_EQ(all_contents(), before);
  expect_one_set_of_maps();
  expect_enforced();
}

TEST_F(ReplaceMapsTest, AFrozenMapIsReplacedByOneThatCanBeWritten) {
  ASSERT_EQ(bpf_map_freeze(datapath_->map_fd(kAddressesMap)), 0);
  Inspection inspection = datapath_->inspect(10);
  EXPECT_EQ(inspection.frozen, std::vector<std::string>{"mg_addresses"});
  ASSERT_EQ(inspection.problems.size(), 1u);
  const auto replaced = replace(*datapath_, options().sizes, inspection.frozen);
  ASSERT_TRUE(replaced) << replaced.error().message();
  EXPECT_TRUE(datapath_->inspect(10).problems.empty());
  expect_one_set_of_maps();
  learn(kIpv4World.forbidden, kFirstSet);
  EXPECT_EQ(send_to(kIpv4World.forbidden), 0);
  // So does a start.
  ASSERT_EQ(bpf_map_freeze(datapath_->map_fd(kPortsMap)), 0);
  reopen(options());
  EXPECT_TRUE(datapath_->inspect(10).problems.empty());
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
}

TEST_F(ReplaceMapsTest, FiftyResizesWrongNobody) {
  learn_many(500);
  Client client(*this);
  for (int i = 0; i < 50; ++i) {
    const auto replaced = replace(*datapath_, sized(i % 2 == 0 ? 4096 : 1024).sizes);
    ASSERT_TRUE(replaced) << replaced.error().message();
    // Rows come and go in between.
    learn("203.0.113." + std::to_string(i), kFirstSet);
  }
  EXPECT_EQ(client.stop(), 0);
  EXPECT_EQ(all_contents().at("mg_addresses").size(), 551u);
  expect_one_set_of_maps();
}

TEST_F(ReplaceMapsTest, RestartsWithOtherSizesWrongNobody) {
  learn_many(500);
  Client client(*this);
  for (int i = 0; i < 10; ++i) reopen(sized(i % 2 == 0 ? 4096 : 1024));
  EXPECT_EQ(client.stop(), 0);
  expect_one_set_of_maps();
}

TEST_F(ReplaceMapsTest, AKillAtAnyMomentLeavesWhatTheNextOneCanTakeOver) {
  learn_many(500);
  const auto before = all_contents();
  datapath_.reset();
  Client client(*this);
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    test::Child resizing([&] {
      auto datapath = Datapath::open(sized(1024));
      for (int round = 0; datapath; ++round)
        if (!replace(*datapath, sized(round % 2 == 0 ? 4096 : 2048).sizes)) return 1;
      return 2;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 200));
    ASSERT_EQ(kill(resizing.pid(), SIGKILL), 0);
    EXPECT_EQ(resizing.wait(), 255) << "it ended by itself";
    reopen(sized(1024));
    EXPECT_EQ(all_contents(), before);
    expect_one_set_of_maps();
    datapath_.reset();
  }
  EXPECT_EQ(client.stop(), 0);
}

// As a version before this one would have left it: addresses with another value.
class OlderLayoutTest : public ReplaceMapsTest {
 protected:
  struct OldValue {
    std::uint64_t port_sets;
    std::uint64_t more;
  };

  void SetUp() override {
    ReplaceMapsTest::SetUp();
    if (!datapath_) return;
    ASSERT_TRUE(datapath_->detach(cgroup_.id()));
    datapath_.reset();
    fs::remove_all(options().bpffs);
    leave_older_version();
  }

  void leave_older_version() {
    auto set = ProgramSet::open(options());
    ASSERT_TRUE(set);
    define_addresses(*set);
    ASSERT_TRUE(set->load(false));
    const mg_workload workload{MG_MODE_ENFORCE, 0};
    write(*set, "mg_workloads", kWorkload, workload);
    mg_address_key key{};
    key.workload = kWorkload;
    std::ranges::copy(Endpoint(kIpv4World.allowed, 0).mapped(), key.address);
    write_address(*set, key);
    mg_port_key all{};
    all.prefixlen = 32;
    all.workload = kWorkload;
    write(*set, "mg_ports", all, mg_port_sets{kFirstSet});
    CgroupLinks links(set->object(), options().bpffs / "links", find_cgroup2_root().value());
    ASSERT_TRUE(links.attach(cgroup_.id()));
    write(*set, "mg_bindings", cgroup_.id(), mg_binding{kWorkload, 0});
    write(*set, "mg_cgroups", cgroup_.id(), mg_cgroup{kWorkload});
    ASSERT_TRUE(ObjectPins(options().bpffs).pin(set->object()));
  }

  virtual void define_addresses(ProgramSet& set) {
    ASSERT_EQ(bpf_map__set_value_size(set.skeleton().maps.mg_addresses, sizeof(OldValue)), 0);
  }
  virtual void write_address(const ProgramSet& set, const mg_address_key& key) {
    write(set, "mg_addresses", key, OldValue{kFirstSet, 0});
  }

  template <typename Key, typename Value>
  static void write(const ProgramSet& set, const char* map, const Key& key, const Value& value) {
    ASSERT_EQ(bpf_map_update_elem(set.map_fd(map), &key, &value, BPF_ANY), 0)
        << map << " " << errno;
  }
};

TEST_F(OlderLayoutTest, IsEnforcedUntilTheMapOfTheNewLayoutIsFilled) {
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  EXPECT_EQ(send_to(kIpv4World.forbidden), EPERM);
  reopen(options());
  ASSERT_TRUE(datapath_->awaits_contents());
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).value_size, sizeof(mg_port_sets));
  // The new map is empty, and nobody reads it.
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  EXPECT_TRUE(datapath_->inspect(10).repaired.empty());
  // So it is after a kill, too.
  reopen(options());
  ASSERT_TRUE(datapath_->awaits_contents());
  // Rebinding does not move it either.
  ASSERT_TRUE(datapath_->attach(cgroup_.directory(), kWorkload));
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);

  learn(kIpv4World.allowed, kFirstSet);
  const auto switched = datapath_->switch_over();
  ASSERT_TRUE(switched) << switched.error().message();
  EXPECT_FALSE(datapath_->awaits_contents());
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  EXPECT_EQ(send_to(kIpv4World.forbidden), EPERM);
  expect_one_set_of_maps();
  reopen(options());
  EXPECT_FALSE(datapath_->awaits_contents());
}

// The sizes alone do not show it.
class OlderTypesTest : public OlderLayoutTest {
 protected:
  void define_addresses(ProgramSet& set) override {
    const std::unique_ptr<btf, decltype(&btf__free)> types(btf__new_empty(), btf__free);
    const int word = btf__add_int(types.get(), "unsigned int", 4, 0);
    const int byte = btf__add_int(types.get(), "unsigned char", 1, 0);
    const int address = btf__add_array(types.get(), word, byte, 16);
    const int key = btf__add_struct(types.get(), "mg_address_key", sizeof(mg_address_key));
    ASSERT_EQ(btf__add_field(types.get(), "workload", word, 0, 0), 0);
    ASSERT_EQ(btf__add_field(types.get(), "address", address, 32, 0), 0);
    const int value = btf__add_struct(types.get(), "mg_port_sets", sizeof(mg_port_sets));
    ASSERT_EQ(btf__add_field(types.get(), "low", word, 0, 0), 0);
    ASSERT_EQ(btf__add_field(types.get(), "high", word, 32, 0), 0);
    ASSERT_EQ(btf__load_into_kernel(types.get()), 0);
    LIBBPF_OPTS(bpf_map_create_opts, options,
                .btf_fd = static_cast<std::uint32_t>(btf__fd(types.get())),
                .btf_key_type_id = static_cast<std::uint32_t>(key),
                .btf_value_type_id = static_cast<std::uint32_t>(value));
    const UniqueFd map(bpf_map_create(BPF_MAP_TYPE_HASH, "mg_addresses", sizeof(mg_address_key),
                                      sizeof(mg_port_sets), 64, &options));
    ASSERT_TRUE(map) << errno;
    ASSERT_TRUE(ProgramSet::reuse(set.skeleton().maps.mg_addresses, map.get()));
  }
  void write_address(const ProgramSet& set, const mg_address_key& key) override {
    write(set, "mg_addresses", key, mg_port_sets{kFirstSet});
  }
};

TEST_F(OlderTypesTest, AreNotTakenForTheNewOnes) {
  reopen(options());
  ASSERT_TRUE(datapath_->awaits_contents());
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  learn(kIpv4World.allowed, kFirstSet);
  ASSERT_TRUE(datapath_->switch_over());
  EXPECT_EQ(send_to(kIpv4World.allowed), 0);
  reopen(options());
  EXPECT_FALSE(datapath_->awaits_contents());
}

TEST_F(OlderLayoutTest, WithoutAttachedCgroupsIsReplacedAtOnce) {
  for (const fs::directory_entry& entry :
       fs::directory_iterator(options().bpffs / "links" / std::to_string(cgroup_.id()))) {
    UniqueFd link(bpf_obj_get(entry.path().c_str()));
    ASSERT_EQ(bpf_link_detach(link.get()), 0);
  }
  fs::remove_all(options().bpffs / "links");
  reopen(options());
  EXPECT_FALSE(datapath_->awaits_contents());
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).value_size, sizeof(mg_port_sets));
  UniqueFd pin(bpf_obj_get((options().bpffs / "maps" / kAddressesMap).c_str()));
  EXPECT_EQ(info_of(pin.get()).id, info_of(datapath_->map_fd(kAddressesMap)).id);
}

}  // namespace
}  // namespace mapgate::datapath
