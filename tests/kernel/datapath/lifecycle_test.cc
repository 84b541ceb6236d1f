// SPDX-License-Identifier: Apache-2.0
// Pins, links and their adoption: enforcement outlives whoever set it up.
#include <bpf/bpf.h>
#include <linux/capability.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "agent/datapath/environment.h"
#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;
using test::Endpoint;
using test::serve;

constexpr std::size_t kPrograms = 10;

class LifecycleTest : public EnforcedWorkloadTest {
 protected:
  [[nodiscard]] fs::path link_directory() const {
    return options().bpffs / "links" / std::to_string(cgroup_.id());
  }

  // Each pinned link by name.
  [[nodiscard]] std::map<std::string, bpf_link_info> links() const {
    std::map<std::string, bpf_link_info> result;
    for (const fs::directory_entry& entry : fs::directory_iterator(link_directory())) {
      UniqueFd link(bpf_obj_get(entry.path().c_str()));
      bpf_link_info info{};
      std::uint32_t size = sizeof info;
      EXPECT_EQ(bpf_obj_get_info_by_fd(link.get(), &info, &size), 0);
      result[entry.path().filename()] = info;
    }
    return result;
  }

  void expect_all_attached() {
    const auto all = links();
    EXPECT_EQ(all.size(), kPrograms);
    for (const auto& [name, link] : all) EXPECT_EQ(link.cgroup.cgroup_id, cgroup_.id()) << name;
  }

  // Takes a link away as `bpftool link detach` does; its pin stays.
  void detach_link(const std::string& name) {
    UniqueFd link(bpf_obj_get((link_directory() / name).c_str()));
    ASSERT_EQ(bpf_link_detach(link.get()), 0) << errno;
  }
};

TEST_F(LifecycleTest, EnforcementOutlivesTheDatapath) {
  datapath_.reset();
  expect_enforced();
}

TEST_F(LifecycleTest, EnforcementOutlivesTheProcessThatLoadedIt) {
  test::TemporaryCgroup other;
  datapath_.reset();
  ASSERT_EQ(test::run_in_child([&] {
              auto opened = Datapath::open(options());
              return opened && opened->attach(other.directory(), kWorkload) ? 0 : 1;
            }),
            0);
  EXPECT_EQ(test::run_in_child([&] {
              if (int error = other.enter()) return error;
              if (int error = udp_send({kIpv4World.allowed, port_})) return error;
              return udp_send({kIpv4World.forbidden, port_});
            }),
            EPERM);
}

TEST_F(LifecycleTest, NextDatapathAdoptsTheSameLinksWithItsOwnPrograms) {
  const auto before = links();
  ASSERT_EQ(before.size(), kPrograms);
  reopen();
  const auto after = links();
  ASSERT_EQ(after.size(), kPrograms);
  for (const auto& [name, link] : after) {
    EXPECT_EQ(link.id, before.at(name).id) << name;
    EXPECT_EQ(link.prog_id, datapath_->program_id(name)) << name;
    EXPECT_NE(link.prog_id, before.at(name).prog_id) << name;
  }
  const auto attachments = datapath_->attachments();
  ASSERT_EQ(attachments.size(), 1u);
  EXPECT_EQ(attachments[0].cgroup, cgroup_.id());
  EXPECT_EQ(attachments[0].workload, kWorkload);
  EXPECT_EQ(attachments[0].path, cgroup_.directory());
  expect_enforced();
}

TEST_F(LifecycleTest, NoPacketPassesWhileLinksAreAdopted) {
  test::Child client = start_in_workload([&] {
    for (int i = 0; i < 20000; ++i)
      if (udp_send({kIpv4World.forbidden, port_}) != EPERM) return 101;
    return 0;
  });
  for (int i = 0; i < 3; ++i) reopen();
  EXPECT_EQ(client.wait(), 0);
  EXPECT_FALSE(received(server_.get()));
}

TEST_F(LifecycleTest, ASecondDatapathOnTheSameMapsIsRefusedAndChangesNothing) {
  const auto before = links();
  const auto second = Datapath::open(options());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().error_number, EBUSY);
  const std::string message = second.error().message();
  for (const std::string& part : {options().bpffs.string(), "process " + std::to_string(getpid())})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  for (const auto& [name, link] : links()) EXPECT_EQ(link.prog_id, before.at(name).prog_id);
  datapath_.reset();
  EXPECT_TRUE(Datapath::open(options()));
}

TEST_F(LifecycleTest, HalfASetOfLinksIsCompleted) {
  for (const char* name : {"mg_egress", "mg_connect4", "mg_sendmsg4"}) {
    detach_link(name);
    fs::remove(link_directory() / name);
  }
  EXPECT_EQ(links().size(), kPrograms - 3);
  reopen();
  expect_all_attached();
  expect_enforced();
}

TEST_F(LifecycleTest, LinksDetachedFromOutsideAreAttachedAgain) {
  for (const char* name : {"mg_egress", "mg_connect4", "mg_sendmsg4"}) detach_link(name);
  EXPECT_EQ(links().at("mg_egress").cgroup.cgroup_id, 0u);
  reopen();
  EXPECT_EQ(datapath_->attachments().size(), 1u);
  expect_all_attached();
  expect_enforced();
  detach_link("mg_sendmsg4");
  ASSERT_TRUE(datapath_->attach(cgroup_.directory(), kWorkload));
  expect_all_attached();
}

TEST_F(LifecycleTest, AttachingAgainCompletesTheLinksAndRebinds) {
  fs::remove(link_directory() / "mg_sendmsg4");
  ASSERT_TRUE(datapath_->attach(cgroup_.directory(), kWorkload + 1));
  EXPECT_EQ(links().size(), kPrograms);
  EXPECT_EQ(datapath_->attachments().front().workload, kWorkload + 1);
  EXPECT_EQ(send_to(kIpv4World.allowed), EPERM);
}

TEST_F(LifecycleTest, PinsOfARemovedCgroupAreDropped) {
  const fs::path directory = link_directory();
  const std::uint64_t id = cgroup_.id();
  cgroup_.remove();
  EXPECT_EQ(datapath_->drop_dead_attachments(), std::vector{id});
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_TRUE(datapath_->attachments().empty());
  cgroup_.make();
  ASSERT_TRUE(datapath_->attach(cgroup_.directory(), kWorkload));
  expect_enforced();
}

TEST_F(LifecycleTest, PinsOfACgroupRemovedMeanwhileAreDroppedAtOpen) {
  const fs::path directory = link_directory();
  datapath_.reset();
  cgroup_.remove();
  cgroup_.make();
  reopen();
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_TRUE(datapath_->attachments().empty());
}

TEST_F(LifecycleTest, DetachEndsEnforcementAndAttachDoesNotRememberTheOldWorkload) {
  const std::uint64_t id = cgroup_.id();
  ASSERT_TRUE(datapath_->detach(id));
  EXPECT_EQ(send_to(kIpv4World.forbidden), 0);
  EXPECT_FALSE(fs::exists(link_directory()));
  EXPECT_EQ(datapath_->detach(id).error().error_number, ENOENT);
  // Another workload, which is not configured: nothing of the old one's rows may show.
  ASSERT_TRUE(datapath_->attach(cgroup_.directory(), kWorkload + 1));
  EXPECT_EQ(send_to(kIpv4World.allowed), EPERM);
}

TEST_F(LifecycleTest, ProxyPortsSurviveTheDatapath) {
  ProxyPorts ports;
  ports.udp4[3] = 1234;
  ports.tcp6 = 4321;
  ASSERT_TRUE(datapath_->set_proxy_ports(network_cookie_, ports));
  reopen();
  EXPECT_EQ(datapath_->proxy_ports(network_cookie_), ports);
}

TEST_F(LifecycleTest, ProgramsUseThePinnedMaps) {
  for (std::string_view name : {kWorkloadsMap, kAddressesMap, kPrefixesMap, kPortsMap}) {
    bpf_map_info used{}, pinned{};
    std::uint32_t size = sizeof used;
    ASSERT_EQ(bpf_obj_get_info_by_fd(datapath_->map_fd(name), &used, &size), 0);
    UniqueFd pin(bpf_obj_get((options().bpffs / "maps" / name).c_str()));
    ASSERT_EQ(bpf_obj_get_info_by_fd(pin.get(), &pinned, &size), 0);
    EXPECT_EQ(used.id, pinned.id);
    EXPECT_NE(used.btf_id, 0u) << "bpftool map dump shows raw bytes without BTF";
  }
}

TEST_F(LifecycleTest, UnknownNamesAndIdsAreRefused) {
  EXPECT_EQ(datapath_->map_fd("mg_nothing"), -1);
  EXPECT_EQ(datapath_->program_fd("mg_nothing"), -1);
  EXPECT_EQ(datapath_->program_id("mg_nothing"), 0u);
  EXPECT_EQ(datapath_->attach(cgroup_.directory(), 0).error().error_number, EINVAL);
  EXPECT_EQ(datapath_->attach(cgroup_.directory(), MG_MAX_WORKLOADS).error().error_number, EINVAL);
  EXPECT_EQ(datapath_->attach("no/such/cgroup", 1).error().error_number, ENOENT);
  EXPECT_EQ(datapath_->attach("/tmp", 1).error().error_number, EINVAL);
  EXPECT_FALSE(datapath_->counters(MG_MAX_WORKLOADS));
  EXPECT_FALSE(datapath_->lookup_flow(network_cookie_, IPPROTO_UDP, 0, Address{}, 1));
}

TEST_F(LifecycleTest, DirectoryThatIsNoBpffsIsAClearError) {
  Options elsewhere = options();
  elsewhere.bpffs = fs::temp_directory_path() / "mapgate-no-bpffs";
  const auto opened = Datapath::open(elsewhere);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message().find("not on a bpffs"), std::string::npos)
      << opened.error().message();
  EXPECT_FALSE(fs::exists(elsewhere.bpffs));
}

// Of those that this process has.
bool keep_only(std::initializer_list<unsigned> capabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  std::uint32_t kept[2]{};
  for (const unsigned capability : capabilities) kept[capability / 32] |= 1u << capability % 32;
  for (int i = 0; i < 2; ++i) data[i].effective = data[i].permitted &= kept[i];
  return ::syscall(SYS_capset, &header, data) == 0;
}

// CAP_SYS_RESOURCE is for kernels that charge BPF memory to RLIMIT_MEMLOCK (before 5.11).
TEST_F(LifecycleTest, CapabilitiesThatItAsksForSuffice) {
  datapath_.reset();
  EXPECT_EQ(test::run_in_child([&] {
              if (!keep_only(
                      {CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_DAC_READ_SEARCH, CAP_SYS_RESOURCE}))
                return 100;
              auto opened = Datapath::open(options());
              if (!opened) return 101;
              if (!opened->capabilities().foreign_sockets) return 102;
              if (!opened->attach(cgroup_.directory(), kWorkload)) return 103;
              return opened->attachments().front().path.empty() ? 104 : 0;
            }),
            0);
}

TEST_F(LifecycleTest, MissingCapabilityIsAClearError) {
  datapath_.reset();
  EXPECT_EQ(test::run_in_child([&] {
              if (!keep_only({CAP_DAC_OVERRIDE})) return 100;
              const auto opened = Datapath::open(options());
              if (opened) return 101;
              return opened.error().message().find("CAP_BPF") == std::string::npos ? 102 : 0;
            }),
            0);
}

TEST_F(LifecycleTest, GuardIsAdoptedAndCanBeSwitchedOff) {
  const fs::path pins =
      options().bpffs / "guard" / std::to_string(cgroup_id(find_cgroup2_root().value()).value());
  const auto link_id = [&] {
    UniqueFd link(bpf_obj_get((pins / "mg_guard_sendmsg4").c_str()));
    bpf_link_info info{};
    std::uint32_t size = sizeof info;
    return bpf_obj_get_info_by_fd(link.get(), &info, &size) == 0 ? info.id : 0;
  };
  UniqueFd foreign(::socket(AF_INET, SOCK_DGRAM, 0));
  const auto send_foreign = [&] {
    return in_workload([&] {
      const Endpoint to(kIpv4World.forbidden, port_);
      return ::sendto(foreign.get(), "x", 1, 0, to.address(), to.size()) == 1 ? 0 : errno;
    });
  };
  const std::uint32_t id = link_id();
  ASSERT_NE(id, 0u);
  reopen();
  EXPECT_EQ(link_id(), id);
  EXPECT_EQ(send_foreign(), EPERM);
  datapath_.reset();
  EXPECT_EQ(send_foreign(), EPERM);
  Options without = options();
  without.foreign_sockets = false;
  const auto opened = Datapath::open(without);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_FALSE(opened->capabilities().foreign_sockets);
  EXPECT_FALSE(opened->capabilities().foreign_sockets_missing.empty());
  EXPECT_FALSE(fs::exists(pins));
  EXPECT_EQ(send_foreign(), 0);
}

TEST_F(LifecycleTest, CgroupIsFoundByItsId) {
  const fs::path root = find_cgroup2_root().value();
  EXPECT_EQ(cgroup_path(root, cgroup_.id()), cgroup_.directory());
  const std::uint64_t id = cgroup_.id();
  cgroup_.remove();
  EXPECT_EQ(cgroup_path(root, id), fs::path());
  EXPECT_EQ(open_cgroup(root, id).error().error_number, ESTALE);
}

}  // namespace
}  // namespace mapgate::datapath
