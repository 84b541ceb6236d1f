// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_error.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace mapgate::maps {
namespace {

using reconciler::ErrorClass;

struct Case {
  int error;
  MapAction action;
  bpf_map_type type;
  ErrorClass expected;
};

class Classify : public testing::TestWithParam<Case> {};

TEST_P(Classify, SaysWhatTheErrorMeansForTheRow) {
  const Case& c = GetParam();
  EXPECT_EQ(classify(c.error, c.action, c.type), c.expected)
      << describe_errno(c.error) << ", " << describe_type(c.type);
}

constexpr auto kWrite = MapAction::kWrite;
constexpr auto kHash = BPF_MAP_TYPE_HASH;
constexpr auto kTrie = BPF_MAP_TYPE_LPM_TRIE;

INSTANTIATE_TEST_SUITE_P(Full, Classify,
                         testing::Values(Case{E2BIG, kWrite, kHash, ErrorClass::kCapacity},
                                         Case{E2BIG, kWrite, BPF_MAP_TYPE_ARRAY,
                                              ErrorClass::kPermanent},
                                         Case{ENOSPC, kWrite, kTrie, ErrorClass::kCapacity}));
INSTANTIATE_TEST_SUITE_P(
    Transient, Classify,
    testing::Values(Case{EBUSY, kWrite, kHash, ErrorClass::kTransient},
                    Case{EAGAIN, kWrite, kHash, ErrorClass::kTransient},
                    Case{EINTR, MapAction::kRead, kTrie, ErrorClass::kTransient},
                    Case{ENOMEM, kWrite, kTrie, ErrorClass::kTransient},
                    Case{EDEADLK, kWrite, kHash, ErrorClass::kTransient},
                    Case{ETIMEDOUT, MapAction::kDelete, kHash, ErrorClass::kTransient}));
INSTANTIATE_TEST_SUITE_P(Permanent, Classify,
                         testing::Values(Case{EINVAL, kWrite, kTrie, ErrorClass::kPermanent},
                                         Case{EPERM, kWrite, kHash, ErrorClass::kPermanent},
                                         Case{524, kWrite, kTrie, ErrorClass::kPermanent},
                                         Case{EFAULT, kWrite, kHash, ErrorClass::kPermanent}));
INSTANTIATE_TEST_SUITE_P(
    Lost, Classify,
    testing::Values(Case{EBADF, kWrite, kHash, ErrorClass::kTargetLost},
                    Case{EBADF, MapAction::kRead, kTrie, ErrorClass::kTargetLost},
                    Case{ENOENT, MapAction::kOpen, kHash, ErrorClass::kTargetLost}));

TEST(DescribeErrno, KnowsTheKernelsOwn524) {
  EXPECT_EQ(describe_errno(524), "not supported by this type of map (ENOTSUPP)");
}

}  // namespace
}  // namespace mapgate::maps
