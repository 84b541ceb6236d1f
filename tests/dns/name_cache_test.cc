// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/name_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

namespace mapgate::dns {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr TimePoint kStart{std::chrono::hours(1)};

policy::IpAddress ip(std::string_view text) {
  return policy::IpAddress::parse(text).value();
}
LearnedAddress learned(std::string_view text, int ttl = 5) {
  return {ip(text), seconds(ttl)};
}

NameCacheLimits limits() {
  return {.min_ttl = seconds(60), .max_ttl = seconds(3600), .grace = seconds(10)};
}

class NameCacheTest : public testing::Test {
 protected:
  // Learns, and returns what changed.
  AddressChanges learn(std::string_view name, std::uint64_t port_sets,
                       const std::vector<LearnedAddress>& addresses, TimePoint now = kStart,
                       WorkloadId workload = 1) {
    AddressChanges changes;
    EXPECT_TRUE(cache_->learn(workload, name, port_sets, addresses, now, changes));
    return changes;
  }
  AddressChanges expire(TimePoint now, std::size_t max = 1000) {
    AddressChanges changes;
    cache_->expire(now, max, changes);
    return changes;
  }
  AddressChanges forget(std::string_view name) {
    AddressChanges changes;
    cache_->forget(1, name, changes);
    return changes;
  }
  AddressChanges repolicy(const NameCache::PortSetsOf& port_sets) {
    AddressChanges changes;
    cache_->repolicy(port_sets, changes);
    return changes;
  }
  void use(const NameCacheLimits& with) { cache_ = std::make_unique<NameCache>(with); }

  std::unique_ptr<NameCache> cache_ = std::make_unique<NameCache>(limits());
};

AddressChange change(std::string_view address, std::uint64_t port_sets, WorkloadId workload = 1) {
  return {workload, ip(address), port_sets};
}

TEST_F(NameCacheTest, OpensAnAddressOnceAndRefreshesIt) {
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.1")}), ElementsAre(change("192.0.2.1", 1)));
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.1")}, kStart + seconds(30)), IsEmpty());
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(30 + 70));
  EXPECT_EQ(cache_->counters().learned, 1U);
  EXPECT_EQ(cache_->counters().refreshed, 1U);
}

TEST_F(NameCacheTest, KeepsAnAddressForItsTtlWithinLimitsAndGrace) {
  learn("short.test", 1, {learned("192.0.2.1", 0)});
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(70));
  EXPECT_THAT(expire(kStart + seconds(69)), IsEmpty());
  EXPECT_THAT(expire(kStart + seconds(70)), ElementsAre(change("192.0.2.1", 0)));
  learn("middle.test", 1, {learned("192.0.2.2", 100)});
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(110));
  forget("middle.test");
  learn("long.test", 1, {learned("192.0.2.3", 100000)});
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(3610));
}

TEST_F(NameCacheTest, AShorterTtlTakesNothingAway) {
  learn("a.test", 1, {learned("192.0.2.1", 1000)});
  learn("a.test", 1, {learned("192.0.2.1", 1)});
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(1010));
}

TEST_F(NameCacheTest, AnAddressOfSeveralNamesGoesWithTheLastOne) {
  learn("a.test", 1, {learned("192.0.2.1")});
  EXPECT_THAT(learn("b.test", 2, {learned("192.0.2.1")}), ElementsAre(change("192.0.2.1", 3)));
  EXPECT_THAT(learn("c.test", 2, {learned("192.0.2.1")}), IsEmpty());
  EXPECT_THAT(forget("b.test"), IsEmpty());
  EXPECT_THAT(forget("a.test"), ElementsAre(change("192.0.2.1", 2)));
  EXPECT_THAT(forget("c.test"), ElementsAre(change("192.0.2.1", 0)));
  EXPECT_EQ(cache_->addresses(), 0U);
  EXPECT_EQ(cache_->names(), 0U);
}

TEST_F(NameCacheTest, WorkloadsAreApart) {
  learn("a.test", 1, {learned("192.0.2.1")});
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.1")}, kStart, 2),
              ElementsAre(change("192.0.2.1", 1, 2)));
  EXPECT_THAT(forget("a.test"), ElementsAre(change("192.0.2.1", 0)));
  EXPECT_EQ(cache_->port_sets(2, ip("192.0.2.1")), 1U);
}

TEST_F(NameCacheTest, EvictsTheLeastRecentlyResolvedOfAName) {
  auto with = limits();
  with.max_per_name = 2;
  use(with);
  learn("a.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  learn("a.test", 1, {learned("192.0.2.1")}, kStart + seconds(1));
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.3")}, kStart + seconds(2)),
              UnorderedElementsAre(change("192.0.2.2", 0), change("192.0.2.3", 1)));
  EXPECT_EQ(cache_->counters().evicted_per_name, 1U);
}

TEST_F(NameCacheTest, TellsOfWhatGoesByItselfAndNotOfWhatIsForgotten) {
  std::vector<std::string> dropped;
  auto small = limits();
  small.max_per_name = 1;
  cache_ = std::make_unique<NameCache>(small, [&](const CachedAddress& entry) {
    dropped.push_back(std::string(entry.name) + " " + entry.address.to_string());
  });
  learn("a.test", 1, {learned("192.0.2.1")});
  learn("a.test", 1, {learned("192.0.2.2")});
  learn("b.test", 1, {learned("192.0.2.3")});
  forget("b.test");
  expire(kStart + seconds(1000));
  EXPECT_THAT(dropped, ElementsAre("a.test 192.0.2.1", "a.test 192.0.2.2"));
}

TEST_F(NameCacheTest, AnAnswerWithMoreAddressesThanAnyNameMayHaveChangesNothing) {
  auto with = limits();
  with.max_per_name = 1;
  use(with);
  AddressChanges changes;
  const std::vector<LearnedAddress> two{learned("192.0.2.1"), learned("192.0.2.2")};
  EXPECT_FALSE(cache_->learn(1, "a.test", 1, two, kStart, changes));
  EXPECT_THAT(changes, IsEmpty());
  EXPECT_EQ(cache_->pairs(), 0U);
  EXPECT_EQ(cache_->counters().too_many, 1U);
}

TEST_F(NameCacheTest, EvictsWithinTheWorkloadThatIsFull) {
  auto with = limits();
  with.max_per_name = 1;
  with.max_per_workload = 2;
  use(with);
  learn("other.test", 1, {learned("192.0.2.9")}, kStart, 2);
  learn("a.test", 1, {learned("192.0.2.1")});
  learn("b.test", 1, {learned("192.0.2.2")});
  EXPECT_THAT(learn("c.test", 1, {learned("192.0.2.3")}),
              UnorderedElementsAre(change("192.0.2.1", 0), change("192.0.2.3", 1)));
  EXPECT_EQ(cache_->counters().evicted_per_workload, 1U);
  EXPECT_EQ(cache_->port_sets(2, ip("192.0.2.9")), 1U);
}

TEST_F(NameCacheTest, WhatIsInUseIsEvictedLast) {
  auto with = limits();
  with.max_per_name = 1;
  with.max_per_workload = with.max_total = 3;
  use(with);
  learn("a.test", 1, {learned("192.0.2.1")});
  learn("b.test", 1, {learned("192.0.2.2")});
  cache_->set_in_use(std::vector<WorkloadAddress>{{1, ip("192.0.2.1")}, {2, ip("192.0.2.2")}});
  learn("c.test", 1, {learned("192.0.2.3")});
  EXPECT_THAT(learn("d.test", 1, {learned("192.0.2.4")}),
              UnorderedElementsAre(change("192.0.2.2", 0), change("192.0.2.4", 1)));
  cache_->set_in_use(std::vector<WorkloadAddress>{{1, ip("192.0.2.4")}, {1, ip("192.0.2.3")}});
  EXPECT_THAT(learn("e.test", 1, {learned("192.0.2.5")}),
              UnorderedElementsAre(change("192.0.2.1", 0), change("192.0.2.5", 1)))
      << "it is in use no more";
  EXPECT_EQ(cache_->counters().evicted_in_use, 0U);
}

TEST_F(NameCacheTest, OfThoseInUseTheLeastRecentlyResolvedGoesIfAllAre) {
  auto with = limits();
  with.max_per_name = 2;
  use(with);
  learn("a.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  cache_->set_in_use(std::vector<WorkloadAddress>{{1, ip("192.0.2.1")}, {1, ip("192.0.2.2")}});
  learn("a.test", 1, {learned("192.0.2.1")}, kStart + seconds(1));
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.3")}, kStart + seconds(2)),
              UnorderedElementsAre(change("192.0.2.2", 0), change("192.0.2.3", 1)));
  EXPECT_EQ(cache_->counters().evicted_in_use, 1U);
}

TEST_F(NameCacheTest, IsCrowdedFromThreeQuartersOfALimit) {
  auto with = limits();
  with.max_per_name = 4;
  with.max_per_workload = with.max_total = 8;
  use(with);
  learn("a.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  EXPECT_FALSE(cache_->is_crowded());
  learn("a.test", 1, {learned("192.0.2.3")});
  EXPECT_TRUE(cache_->is_crowded()) << "the name";
  learn("a.test", 1, {learned("192.0.2.4"), learned("192.0.2.5")});
  learn("b.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  forget("a.test");
  EXPECT_FALSE(cache_->is_crowded());
  learn("c.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  learn("d.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  EXPECT_TRUE(cache_->is_crowded()) << "the workload";
  expire(kStart + seconds(1000));
  EXPECT_FALSE(cache_->is_crowded());
}

TEST_F(NameCacheTest, EvictsTheLeastRecentlyResolvedOfAll) {
  auto with = limits();
  with.max_per_name = with.max_per_workload = 2;
  with.max_total = 3;
  use(with);
  learn("a.test", 1, {learned("192.0.2.1")}, kStart, 1);
  learn("b.test", 1, {learned("192.0.2.2")}, kStart, 2);
  learn("c.test", 1, {learned("192.0.2.3")}, kStart, 3);
  learn("a.test", 1, {learned("192.0.2.1")}, kStart, 1);
  EXPECT_THAT(learn("d.test", 1, {learned("192.0.2.4")}, kStart, 4),
              UnorderedElementsAre(change("192.0.2.2", 0, 2), change("192.0.2.4", 1, 4)));
  EXPECT_EQ(cache_->counters().evicted_total, 1U);
}

// cilium 47128, 48359.
TEST_F(NameCacheTest, FreshNamesOnOneAddressStayWithinTheLimit) {
  auto with = limits();
  with.max_per_name = 8;
  with.max_per_workload = 100;
  use(with);
  for (int i = 0; i < 20000; ++i) learn("n" + std::to_string(i), 1, {learned("192.0.2.1")});
  EXPECT_EQ(cache_->pairs(), 100U);
  EXPECT_EQ(cache_->names(), 100U);
  EXPECT_EQ(cache_->addresses(), 1U);
}

TEST_F(NameCacheTest, ThousandsOfNamesOnOneAddressStayFast) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 16000; ++i) learn("n" + std::to_string(i), 1, {learned("192.0.2.1")});
  for (int i = 0; i < 16000; ++i) learn("n" + std::to_string(i), 1, {learned("192.0.2.1")});
  for (int i = 0; i < 16000; ++i) forget("n" + std::to_string(i));
  // A walk over the names of the address each time would take minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
  EXPECT_EQ(cache_->pairs(), 0U);
}

TEST_F(NameCacheTest, APolicyChangeSetsPortSetsAndRevokes) {
  learn("stays.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  learn("goes.test", 2, {learned("192.0.2.2"), learned("192.0.2.3")});
  // The transition allows what either allows.
  EXPECT_THAT(repolicy([](WorkloadId, std::string_view name, std::uint64_t now) {
                return name == "stays.test" ? now | 4 : now;
              }),
              UnorderedElementsAre(change("192.0.2.1", 5), change("192.0.2.2", 7)));
  EXPECT_THAT(
      repolicy([](WorkloadId, std::string_view name, std::uint64_t) {
        return name == "stays.test" ? 4U : 0U;
      }),
      UnorderedElementsAre(change("192.0.2.1", 4), change("192.0.2.2", 4), change("192.0.2.3", 0)));
  EXPECT_EQ(cache_->names(), 1U);
}

TEST_F(NameCacheTest, AnAdoptedAddressIsKeptForAWhile) {
  AddressChanges changes;
  cache_->adopt(1, ip("192.0.2.1"), 6, kStart, changes);
  EXPECT_THAT(changes, ElementsAre(change("192.0.2.1", 6)));
  EXPECT_EQ(cache_->next_expiry(), kStart + seconds(70));
  EXPECT_THAT(learn("a.test", 1, {learned("192.0.2.1", 3000)}),
              ElementsAre(change("192.0.2.1", 7)));
  EXPECT_THAT(expire(kStart + seconds(70)), ElementsAre(change("192.0.2.1", 1)));
}

TEST_F(NameCacheTest, AnAddressThatANameHoldsIsNotAdopted) {
  learn("a.test", 1, {learned("192.0.2.1")});
  AddressChanges changes;
  cache_->adopt(1, ip("192.0.2.1"), 6, kStart, changes);
  EXPECT_THAT(changes, IsEmpty());
  EXPECT_EQ(cache_->pairs(), 1U);
}

TEST_F(NameCacheTest, APolicyChangeReachesAdoptedAddresses) {
  AddressChanges changes;
  cache_->adopt(1, ip("192.0.2.1"), 6, kStart, changes);
  cache_->adopt(1, ip("192.0.2.2"), 2, kStart, changes);
  EXPECT_THAT(repolicy([](WorkloadId, std::string_view, std::uint64_t now) { return now & 4; }),
              UnorderedElementsAre(change("192.0.2.1", 4), change("192.0.2.2", 0)));
}

TEST_F(NameCacheTest, RestoresWhatItListed) {
  learn("a.test", 1, {learned("192.0.2.1"), learned("2001:db8::1", 500)});
  learn("b.test", 2, {learned("192.0.2.1")}, kStart + seconds(5));
  AddressChanges adopted;
  cache_->adopt(1, ip("192.0.2.7"), 4, kStart, adopted);
  NameCache restored(limits());
  AddressChanges changes;
  cache_->for_each([&](const CachedAddress& entry) { restored.restore(entry, changes); });
  EXPECT_EQ(restored.pairs(), 4U);
  EXPECT_EQ(restored.next_expiry(), cache_->next_expiry());
  EXPECT_EQ(restored.port_sets(1, ip("192.0.2.1")), 3U);
  EXPECT_EQ(restored.port_sets(1, ip("2001:db8::1")), 1U);
  EXPECT_EQ(restored.port_sets(1, ip("192.0.2.7")), 4U);
}

TEST_F(NameCacheTest, ListsByNameAndByAddress) {
  learn("a.test", 1, {learned("192.0.2.1"), learned("192.0.2.2")});
  learn("b.test", 2, {learned("192.0.2.1")});
  std::set<std::string> addresses;
  cache_->for_each_of_name(1, "a.test", [&](const CachedAddress& entry) {
    addresses.insert(entry.address.to_string());
  });
  EXPECT_THAT(addresses, ElementsAre("192.0.2.1", "192.0.2.2"));
  std::set<std::string> names;
  cache_->for_each_of_address(1, ip("192.0.2.1"), [&](const CachedAddress& entry) {
    names.insert(std::string(entry.name));
  });
  EXPECT_THAT(names, ElementsAre("a.test", "b.test"));
}

TEST_F(NameCacheTest, ExpiryWorksInSlices) {
  for (int i = 0; i < 10; ++i)
    learn("n" + std::to_string(i), 1, {learned("192.0.2." + std::to_string(i))});
  EXPECT_EQ(expire(kStart + seconds(1000), 4).size(), 4U);
  EXPECT_EQ(cache_->pairs(), 6U);
  EXPECT_EQ(expire(kStart + seconds(1000), 100).size(), 6U);
  EXPECT_EQ(cache_->next_expiry(), std::nullopt);
}

// Thousands of random operations against a model that recomputes everything: the changes, applied
// in order, keep a map equal to what the names hold.
TEST_F(NameCacheTest, ChangesKeepAMapEqualToTheCache) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    auto with = limits();
    with.max_per_name = 4;
    with.max_per_workload = 12;
    with.max_total = 20;
    NameCache cache(with);
    std::map<std::pair<WorkloadId, policy::IpAddress>, std::uint64_t> map;
    TimePoint now = kStart;
    for (int step = 0; step < 500; ++step) {
      now += seconds(random() % 5);
      AddressChanges changes;
      const WorkloadId workload = 1 + static_cast<WorkloadId>(random() % 3);
      const std::string name = "n" + std::to_string(random() % 8);
      const auto address = [&] { return ip("192.0.2." + std::to_string(random() % 10)); };
      switch (random() % 8) {
        case 0:
          cache.forget(workload, name, changes);
          break;
        case 1:
          cache.repolicy([&](auto, auto, std::uint64_t) { return random() % 4; }, changes);
          break;
        case 2:
          cache.expire(now, random() % 4, changes);
          break;
        case 3:
          cache.adopt(workload, address(), 1 + random() % 7, now, changes);
          break;
        default: {
          std::vector<LearnedAddress> addresses;
          for (unsigned i = random() % 4; i < 4; ++i)
            addresses.push_back({address(), seconds(random() % 200)});
          EXPECT_TRUE(cache.learn(workload, name, 1 + random() % 7, addresses, now, changes));
        }
      }
      std::set<std::pair<WorkloadId, policy::IpAddress>> seen;
      for (const AddressChange& change : changes) {
        EXPECT_TRUE(seen.insert({change.workload, change.address}).second);
        if (change.port_sets == 0) {
          EXPECT_EQ(map.erase({change.workload, change.address}), 1U);
        } else {
          map[{change.workload, change.address}] = change.port_sets;
        }
      }
      decltype(map) expected;
      std::map<WorkloadId, std::size_t> pairs;
      cache.for_each([&](const CachedAddress& entry) {
        expected[{entry.workload, entry.address}] |= entry.port_sets;
        ++pairs[entry.workload];
      });
      ASSERT_EQ(map, expected) << "seed " << seed << " step " << step;
      ASSERT_LE(cache.pairs(), with.max_total);
      for (const auto& [id, count] : pairs) ASSERT_LE(count, with.max_per_workload);
    }
  }
}

}  // namespace
}  // namespace mapgate::dns
