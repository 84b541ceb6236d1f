// SPDX-License-Identifier: Apache-2.0
#include <mapgate/reconciler/hash_index.h>

#include <map>
#include <random>

#include <gtest/gtest.h>

#include <mapgate/reconciler/staggered.h>

namespace mapgate::reconciler {
namespace {

bool any(HashIndex::Number) {
  return true;
}

TEST(HashIndex, FindsAmongNumbersOfOneHashTheOneThatMatches) {
  HashIndex index;
  for (HashIndex::Number number = 0; number < 100; ++number) index.insert(7, number);
  for (HashIndex::Number number = 0; number < 100; ++number)
    EXPECT_EQ(index.find(7, [&](HashIndex::Number found) { return found == number; }), number);
  EXPECT_EQ(index.find(7, [](HashIndex::Number) { return false; }), HashIndex::kNone);
  EXPECT_EQ(index.find(8, any), HashIndex::kNone);
}

// Few hashes, near each other and at the end of the table, so that runs of them collide and wrap.
TEST(HashIndex, HoldsWhatAMapHoldsThroughInsertionsAndErasures) {
  HashIndex index;
  std::map<HashIndex::Number, std::uint32_t> model;  // hash by number
  std::mt19937 random(1);
  const auto draw = [&](std::uint32_t below) {
    return static_cast<std::uint32_t>(random() % below);
  };
  for (int step = 0; step < 50'000; ++step) {
    const HashIndex::Number number = draw(200);
    if (const auto held = model.find(number); held != model.end()) {
      index.erase(held->second, number);
      model.erase(held);
    } else {
      const std::uint32_t hash = 0U - 8U + draw(16);
      index.insert(hash, number);
      model.emplace(number, hash);
    }
    ASSERT_EQ(index.size(), model.size());
    if (step % 50 != 0) continue;
    for (const auto& [held, hash] : model)
      ASSERT_EQ(index.find(hash, [&](HashIndex::Number found) { return found == held; }), held);
  }
  index.reserve(1000);
  while (!model.empty()) {
    index.erase(model.begin()->second, model.begin()->first);
    model.erase(model.begin());
  }
  for (std::uint32_t hash = 0U - 8U; hash != 8U; ++hash)
    EXPECT_EQ(index.find(hash, any), HashIndex::kNone);
}

TEST(Staggered, TakesEachItemThroughAllStagesInOrder) {
  for (const std::size_t count : {0U, 1U, 2U, 7U, 8U, 100U}) {
    std::size_t fetched = 0;
    std::size_t read = 0;
    std::size_t done = 0;
    staggered(
        count, [&](std::size_t item) { EXPECT_EQ(item, fetched++); },
        [&](std::size_t item) {
          EXPECT_EQ(item, read++);
          EXPECT_LT(item, fetched);
        },
        [&](std::size_t item) {
          EXPECT_EQ(item, done++);
          EXPECT_LT(item, read);
        });
    EXPECT_EQ(fetched, count);
    EXPECT_EQ(read, count);
    EXPECT_EQ(done, count);
  }
}

}  // namespace
}  // namespace mapgate::reconciler
