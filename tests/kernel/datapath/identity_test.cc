// SPDX-License-Identifier: Apache-2.0
// Others meddle with pins, links and maps: it is noticed and put right, and enforcement goes on.
#include <bpf/bpf.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include <gmock/gmock.h>

#include "tests/kernel/datapath/fixture.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr std::size_t kAllCgroups = 100;

class IdentityTest : public EnforcedWorkloadTest {
 protected:
  void expect_nothing_left_to_repair() {
    const Inspection again = datapath_->inspect(kAllCgroups);
    EXPECT_THAT(again.repaired, IsEmpty());
    EXPECT_THAT(again.problems, IsEmpty());
  }

  [[nodiscard]] fs::path links() const {
    return options().bpffs / "links" / std::to_string(cgroup_.id());
  }
  [[nodiscard]] fs::path map_pin(std::string_view name) const {
    return options().bpffs / "maps" / name;
  }
  [[nodiscard]] std::uint32_t pinned_map(std::string_view name) const {
    return info_of(UniqueFd(bpf_obj_get(map_pin(name).c_str())).get()).id;
  }
  // Somebody else's map in the place of a pin.
  void pin_foreign_map(std::string_view name, std::uint32_t value_size) const {
    UniqueFd foreign(bpf_map_create(BPF_MAP_TYPE_HASH, "foreign", sizeof(mg_address_key),
                                    value_size, 64, nullptr));
    fs::remove(map_pin(name));
    ASSERT_EQ(bpf_obj_pin(foreign.get(), map_pin(name).c_str()), 0) << errno;
  }
};

TEST_F(IdentityTest, NothingIsRepairedWhereNothingIsWrong) {
  expect_nothing_left_to_repair();
}

TEST_F(IdentityTest, PinsThatAreRemovedArePinnedAgain) {
  const std::uint32_t id = pinned_map(kAddressesMap);
  fs::remove(map_pin(kAddressesMap));
  fs::remove(options().bpffs / "programs" / "mg_egress");
  fs::remove(links() / "mg_connect4");
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.repaired, SizeIs(3));
  EXPECT_THAT(inspection.repaired, Each(HasSubstr("was removed: pinned again")));
  EXPECT_THAT(inspection.repaired, Contains(HasSubstr(map_pin(kAddressesMap).string())));
  EXPECT_THAT(inspection.problems, IsEmpty());
  EXPECT_EQ(pinned_map(kAddressesMap), id);
  expect_nothing_left_to_repair();
  expect_enforced();
}

TEST_F(IdentityTest, WhatCannotBePinnedAgainIsAProblemThatNamesItsPathOnce) {
  const fs::path pins[] = {map_pin(kAddressesMap), links() / "mg_connect4"};
  for (const fs::path& pin : pins) {
    fs::remove(pin);
    fs::create_directory(pin);
  }
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.problems,
              UnorderedElementsAre("pin " + pins[0].string() + ": Is a directory",
                                   "pin " + pins[1].string() + ": Is a directory"));
  EXPECT_THAT(inspection.repaired, IsEmpty());
  for (const fs::path& pin : pins) fs::remove(pin);
  EXPECT_THAT(datapath_->inspect(kAllCgroups).repaired, SizeIs(2));
  expect_nothing_left_to_repair();
}

TEST_F(IdentityTest, EnforcementOutlivesTheRemovalOfAllPins) {
  fs::remove_all(options().bpffs);
  expect_enforced();
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.problems, IsEmpty());
  expect_nothing_left_to_repair();
  // What is pinned again is whole: it outlives the datapath, and another one takes it over.
  reopen();
  expect_enforced();
  EXPECT_THAT(datapath_->attachments(), SizeIs(1));
}

TEST_F(IdentityTest, AForeignMapInThePlaceOfAPinIsReplacedByOurs) {
  const std::uint32_t id = pinned_map(kAddressesMap);
  pin_foreign_map(kAddressesMap, sizeof(mg_port_sets));
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.repaired,
              Contains(HasSubstr("another object was pinned there: replaced")));
  EXPECT_EQ(pinned_map(kAddressesMap), id);
  expect_enforced();
}

TEST_F(IdentityTest, AStartTakesTheMapsThatTheProgramsUseNotWhatIsPinnedInTheirPlace) {
  const std::uint32_t addresses = pinned_map(kAddressesMap);
  const std::uint32_t ports = pinned_map(kPortsMap);
  const std::uint32_t prefixes = pinned_map(kPrefixesMap);
  datapath_.reset();
  pin_foreign_map(kAddressesMap, sizeof(mg_port_sets));
  pin_foreign_map(kPortsMap, 64);  // of another layout, too
  fs::remove(map_pin(kPrefixesMap));
  reopen();
  EXPECT_EQ(pinned_map(kAddressesMap), addresses);
  EXPECT_EQ(pinned_map(kPortsMap), ports);
  EXPECT_EQ(pinned_map(kPrefixesMap), prefixes);
  EXPECT_EQ(info_of(datapath_->map_fd(kAddressesMap)).id, addresses);
  expect_enforced();
}

TEST_F(IdentityTest, AStartWithoutAnyMapPinStillKnowsTheWorkload) {
  datapath_.reset();
  fs::remove_all(options().bpffs / "maps");
  fs::remove_all(options().bpffs / "programs");
  reopen();
  expect_enforced();
  ASSERT_THAT(datapath_->attachments(), SizeIs(1));
  EXPECT_EQ(datapath_->attachments()[0].workload, kWorkload);
}

TEST_F(IdentityTest, AForeignPinThatNoProgramUsesIsReplacedAtAStart) {
  ASSERT_TRUE(datapath_->detach(cgroup_.id()));
  datapath_.reset();
  fs::remove_all(options().bpffs);
  fs::create_directories(options().bpffs / "maps");
  pin_foreign_map(kAddressesMap, 64);
  reopen();
  EXPECT_EQ(pinned_map(kAddressesMap), info_of(datapath_->map_fd(kAddressesMap)).id);
}

TEST_F(IdentityTest, ADetachedProgramIsAttachedAgain) {
  for (const char* name : {"mg_sendmsg4", "mg_connect4"}) {
    UniqueFd link(bpf_obj_get((links() / name).c_str()));
    ASSERT_EQ(bpf_link_detach(link.get()), 0) << errno;
  }
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.repaired, SizeIs(2));
  EXPECT_THAT(inspection.repaired, Each(HasSubstr("detached from the cgroup: attached again")));
  expect_nothing_left_to_repair();
  expect_enforced();
  reopen();
  expect_enforced();
}

// What `bpftool cgroup detach` does: the kernel does not let it take a program that a link holds.
TEST_F(IdentityTest, DetachingByProgramCannotTakeAwayWhatALinkHolds) {
  UniqueFd cgroup(::open(cgroup_.directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(
      bpf_prog_detach2(datapath_->program_fd("mg_egress"), cgroup.get(), BPF_CGROUP_INET_EGRESS),
      0);
  expect_nothing_left_to_repair();
  expect_enforced();
}

// A program without cgroup storage: newer kernels (seen with 6.18.44) let nobody replace one that
// uses mg_bindings by one that does not.
TEST_F(IdentityTest, ALinkThatRunsAnotherProgramIsMovedBack) {
  const std::uint32_t before = datapath_->program_id("mg_recvmsg4");
  UniqueFd link(bpf_obj_get((links() / "mg_recvmsg4").c_str()));
  const bpf_insn pass[] = {{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1},
                           {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
  bpf_prog_load_opts load{};
  load.sz = sizeof load;
  load.expected_attach_type = BPF_CGROUP_UDP4_RECVMSG;
  UniqueFd foreign(bpf_prog_load(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, "pass", "GPL", pass, 2, &load));
  ASSERT_TRUE(foreign) << errno;
  ASSERT_EQ(bpf_link_update(link.get(), foreign.get(), nullptr), 0) << errno;
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.repaired, Contains(HasSubstr("ran another program: moved back")));
  bpf_link_info info{};
  std::uint32_t size = sizeof info;
  ASSERT_EQ(bpf_obj_get_info_by_fd(link.get(), &info, &size), 0);
  EXPECT_EQ(info.prog_id, before);
  expect_enforced();
}

TEST_F(IdentityTest, TheGuardsLinksAreWatchedToo) {
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(options().bpffs / "guard")) {
    if (entry.is_directory()) continue;
    UniqueFd link(bpf_obj_get(entry.path().c_str()));
    ASSERT_EQ(bpf_link_detach(link.get()), 0) << errno;
  }
  EXPECT_THAT(datapath_->inspect(kAllCgroups).repaired, SizeIs(4));
  expect_nothing_left_to_repair();
}

TEST_F(IdentityTest, AFrozenMapThatCannotBeReplacedIsReported) {
  ASSERT_EQ(bpf_map_freeze(datapath_->map_fd("mg_counters")), 0) << errno;
  const Inspection inspection = datapath_->inspect(kAllCgroups);
  EXPECT_THAT(inspection.problems, Contains(HasSubstr("map mg_counters is frozen")));
  EXPECT_THAT(inspection.frozen, IsEmpty());
}

TEST_F(IdentityTest, CgroupsAreLookedAtInTurn) {
  test::TemporaryCgroup other;
  ASSERT_TRUE(datapath_->attach(other.directory(), kWorkload));
  for (const std::uint64_t id : {cgroup_.id(), other.id()})
    fs::remove(options().bpffs / "links" / std::to_string(id) / "mg_egress");
  EXPECT_THAT(datapath_->inspect(1).repaired, SizeIs(1));
  EXPECT_THAT(datapath_->inspect(1).repaired, SizeIs(1));
  expect_nothing_left_to_repair();
}

TEST_F(IdentityTest, ACgroupThatIsGoneIsNotRepaired) {
  cgroup_.remove();
  EXPECT_THAT(datapath_->inspect(kAllCgroups).problems, IsEmpty());
  EXPECT_EQ(datapath_->drop_dead_attachments().size(), 1u);
  EXPECT_FALSE(fs::exists(links()));
  cgroup_.make();
}

}  // namespace
}  // namespace mapgate::datapath
