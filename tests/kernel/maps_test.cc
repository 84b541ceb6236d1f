// SPDX-License-Identifier: Apache-2.0
// mapgate::maps on the running kernel.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <mapgate/maps/map_operations.h>
#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/table.h>

#include "tests/kernel/maps_fixture.h"
#include "tests/support/temporary_bpffs.h"

namespace mapgate::maps {
namespace {

using namespace std::chrono_literals;
using reconciler::ErrorClass;
using testing::HasSubstr;

class KernelMapType : public KernelMaps, public testing::WithParamInterface<bpf_map_type> {
 protected:
  [[nodiscard]] std::vector<Operation> writes(std::uint32_t from, std::uint32_t to,
                                              std::uint64_t add = 100) const {
    std::vector<Operation> batch;
    for (std::uint32_t i = from; i < to; ++i)
      batch.push_back({key_for(GetParam(), i), row_value(i + add)});
    return batch;
  }
  [[nodiscard]] std::vector<Operation> erases(std::uint32_t from, std::uint32_t to) const {
    std::vector<Operation> batch;
    for (std::uint32_t i = from; i < to; ++i)
      batch.push_back({key_for(GetParam(), i), std::nullopt});
    return batch;
  }
  static void expect_contents(const Contents& entries, const std::vector<Operation>& writes) {
    EXPECT_EQ(entries.size(), writes.size());
    for (const Operation& write : writes)
      EXPECT_EQ(std::ranges::count(entries, std::pair{write.key, *write.value}), 1);
  }
};

INSTANTIATE_TEST_SUITE_P(, KernelMapType,
                         testing::Values(BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE,
                                         BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_HASH,
                                         BPF_MAP_TYPE_PERCPU_ARRAY),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(KernelMapType, HoldsWhatWasWrittenAndNothingThatWasErased) {
  MapOperations operations = operations_on(make(info_for(GetParam(), 1001)));
  EXPECT_EQ(failures(carry_out(operations, writes(0, 1000))), 0U);
  expect_contents(scan(operations), writes(0, 1000));
  EXPECT_EQ(failures(carry_out(operations, writes(0, 500, 7000))), 0U);
  EXPECT_EQ(failures(carry_out(operations, erases(500, 1000))), 0U);
  expect_contents(scan(operations), writes(0, 500, 7000));
  EXPECT_EQ(operations.status()[0].entries, is_array(GetParam()) ? 1001U : 500U);
}

TEST_P(KernelMapType, ErasingWhatIsNotThereIsSuccess) {
  MapOperations operations = operations_on(make(info_for(GetParam())));
  carry_out(operations, writes(100, 200));
  const auto results = carry_out(operations, erases(0, 300));
  EXPECT_EQ(failures(results), 0U);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_EQ(results[i].freed, !is_array(GetParam()) && i >= 100 && i < 200) << i;
  EXPECT_TRUE(scan(operations).empty());
}

TEST_P(KernelMapType, WhatDoesNotFitFailsAndTheRestIsThere) {
  MapOperations operations = operations_on(make(info_for(GetParam(), 64)));
  const auto results = carry_out(operations, writes(0, 100));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].error.has_value(), i >= 64) << i;
    if (results[i].error) {
      EXPECT_EQ(results[i].error->error_class,
                is_array(GetParam()) ? ErrorClass::kPermanent : ErrorClass::kCapacity);
    }
  }
  EXPECT_THAT(results[64].error->text, HasSubstr("map \"mg_test\""));
  EXPECT_THAT(results[64].error->text, HasSubstr("(64 entries)"));
  expect_contents(scan(operations), writes(0, 64));
}

TEST_P(KernelMapType, AFullMapTakesNewRowsAsItsDeletesMakeRoom) {
  if (is_array(GetParam())) return;  // its elements are always all there
  MapOperations operations = operations_on(make(info_for(GetParam(), 64)));
  carry_out(operations, writes(0, 64));
  auto batch = writes(64, 74);
  for (Operation& erase : erases(0, 8)) batch.push_back(std::move(erase));
  const auto results = carry_out(operations, batch);
  EXPECT_EQ(failures(results), 2U);
  EXPECT_EQ(operations.status()[0].entries, 64U);
  EXPECT_EQ(scan(operations).size(), 64U);
}

TEST_P(KernelMapType, AFullMapTakesChangesInPlaceUnlessItsKernelRefusesThem) {
  constexpr std::uint32_t kSize = 64;
  Map map = make(info_for(GetParam(), kSize));
  const int fd = map.fd();
  MapOperations operations = operations_on(std::move(map));
  ASSERT_EQ(failures(carry_out(operations, writes(0, kSize))), 0U);
  const auto change = writes(0, kSize, 7000);
  // Tries did before December 2024.
  const bool refuses = bpf_map_update_elem(fd, change[0].key.bytes().data(),
                                           change[0].value->data(), BPF_EXIST) != 0;
  EXPECT_TRUE(!refuses || GetParam() == BPF_MAP_TYPE_LPM_TRIE);
  const auto results = carry_out(operations, change);
  EXPECT_EQ(failures(results), refuses ? kSize : 0U);
  if (!refuses) return expect_contents(scan(operations), change);
  for (const Result& result : results)
    EXPECT_EQ(result.error->error_class, ErrorClass::kCapacity) << result.error->text;
  // One entry of room is enough for all of them.
  carry_out(operations, erases(0, 1));
  const auto rest = std::vector(change.begin() + 1, change.end());
  EXPECT_EQ(failures(carry_out(operations, rest)), 0U);
  expect_contents(scan(operations), rest);
}

TEST_P(KernelMapType, AFrozenMapFailsPermanently) {
  Map map = make(info_for(GetParam()));
  ASSERT_EQ(bpf_map_freeze(map.fd()), 0);
  MapOperations operations = operations_on(std::move(map));
  auto batch = writes(0, 10);
  for (Operation& erase : erases(10, 20)) batch.push_back(std::move(erase));
  const auto results = carry_out(operations, batch);
  EXPECT_EQ(failures(results), 20U);
  for (const Result& result : results) {
    EXPECT_EQ(result.error->code, EPERM);
    EXPECT_EQ(result.error->error_class, ErrorClass::kPermanent);
  }
  EXPECT_THAT(results[0].error->text, HasSubstr("frozen"));
}

TEST_P(KernelMapType, ScansALargeMapInSlices) {
  constexpr std::uint32_t kCount = 20000;
  MapOperations operations = operations_on(make(info_for(GetParam(), kCount)));
  ASSERT_EQ(failures(carry_out(operations, writes(0, kCount))), 0U);
  ASSERT_TRUE(operations.scan_begin());
  Contents entries;
  int slices = 0;
  while (!operations.scan_next(1000, entries).value()) ++slices;
  EXPECT_GE(slices, 19);
  std::map<std::uint32_t, int> seen;
  for (const auto& [key, value] : entries) {
    std::uint64_t number;
    std::memcpy(&number, value.data(), sizeof number);
    ++seen[static_cast<std::uint32_t>(number - 100)];
  }
  EXPECT_EQ(seen.size(), kCount);
  EXPECT_EQ(entries.size(), kCount);
}

// What a resync does with entries that nobody wants. A trie goes on from the last key shown, and
// starts again if it is gone: no element may be shown twice for that.
TEST_P(KernelMapType, AScanIsNotSetBackByDeletesOfWhatItHasShown) {
  constexpr std::uint32_t kCount = 5000;
  MapOperations operations = operations_on(make(info_for(GetParam(), kCount)));
  ASSERT_EQ(failures(carry_out(operations, writes(0, kCount))), 0U);
  ASSERT_TRUE(operations.scan_begin());
  Contents all;
  for (bool end = false; !end;) {
    Contents slice;
    end = operations.scan_next(300, slice).value();
    std::vector<Operation> batch;
    for (std::size_t i = 0; i < slice.size(); ++i) {
      // The last one is where the scan goes on; some of the others stay.
      if (i % 2 == 0 || i + 1 == slice.size()) batch.push_back({slice[i].first, std::nullopt});
      all.push_back(slice[i]);
    }
    carry_out(operations, batch);
  }
  EXPECT_EQ(all.size(), kCount);
}

TEST_P(KernelMapType, ReadingByKeysFindsTheSameAsByBatches) {
  class WithoutBatches final : public MapCalls {
   public:
    unsigned possible_cpus() override { return kernel_.possible_cpus(); }
    int update(int fd, const void* key, const void* value) override {
      return kernel_.update(fd, key, value);
    }
    int remove(int fd, const void* key) override { return kernel_.remove(fd, key); }
    int lookup(int fd, const void* key, void* value) override {
      return kernel_.lookup(fd, key, value);
    }
    int next_key(int fd, const void* key, void* next) override {
      return kernel_.next_key(fd, key, next);
    }
    int update_batch(int, const void*, const void*, std::uint32_t&) override { return 524; }
    int remove_batch(int, const void*, std::uint32_t&) override { return 524; }
    int lookup_batch(int, const void*, void*, void*, void*, std::uint32_t&) override { return 524; }

   private:
    KernelMapCalls kernel_;
  } without_batches;

  std::vector<Map> maps;
  maps.push_back(make(info_for(GetParam(), 3000)));
  MapOperations singly =
      MapOperations::create(std::move(maps), without_batches,
                            {.now = [] { return std::chrono::steady_clock::now(); }})
          .value();
  EXPECT_EQ(failures(carry_out(singly, writes(0, 3000))), 0U);
  EXPECT_EQ(failures(carry_out(singly, erases(100, 2000))), 0U);
  auto expected = writes(0, 100);
  for (Operation& write : writes(2000, 3000)) expected.push_back(std::move(write));
  expect_contents(scan(singly), expected);
}

// Whether a kernel has a call is asked with no element; the answer is what a call with one says.
TEST_P(KernelMapType, CapabilitiesAreWhatThisKernelHas) {
  Map map = make(info_for(GetParam()));
  const int fd = map.fd();
  const MapOperations operations = operations_on(std::move(map));
  const MapStatus status = operations.status()[0];
  const auto write = writes(0, 1);
  std::vector<std::byte> key(write[0].key.bytes().begin(), write[0].key.bytes().end());
  std::vector<std::byte> cursor(8);
  std::vector<std::uint64_t> value(kernel_calls.possible_cpus());
  std::uint32_t count = 1;
  EXPECT_EQ(bpf_map_update_batch(fd, key.data(), value.data(), &count, nullptr) == 0,
            status.update_batch);
  count = 1;
  const int read =
      bpf_map_lookup_batch(fd, nullptr, cursor.data(), key.data(), value.data(), &count, nullptr);
  EXPECT_EQ(read == 0 || errno == ENOENT || errno == ENOSPC, status.lookup_batch);
  count = 1;
  EXPECT_EQ(bpf_map_delete_batch(fd, key.data(), &count, nullptr) == 0, status.delete_batch);
  if (GetParam() == BPF_MAP_TYPE_LPM_TRIE || GetParam() == BPF_MAP_TYPE_PERCPU_ARRAY)
    return;  // since 5.13
  EXPECT_TRUE(status.update_batch && status.lookup_batch);
  EXPECT_EQ(status.delete_batch, !is_array(GetParam()));
}

TEST_F(KernelMaps, ABatchGoesToTheMapsOfItsRows) {
  std::vector<Map> maps;
  maps.push_back(make(info_for(BPF_MAP_TYPE_HASH)));
  maps.push_back(make(info_for(BPF_MAP_TYPE_LPM_TRIE)));
  MapOperations operations = operations_on(std::move(maps));
  std::vector<Operation> batch;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto type = i % 2 == 0 ? BPF_MAP_TYPE_HASH : BPF_MAP_TYPE_LPM_TRIE;
    batch.push_back({key_for(type, i, i % 2), row_value(std::uint64_t{i})});
  }
  const auto results = carry_out(operations, batch);
  EXPECT_EQ(failures(results), 0U);
  EXPECT_EQ(results[1].target, 1U);
  EXPECT_EQ(operations.status()[0].entries, 50U);
  EXPECT_EQ(operations.status()[1].entries, 50U);
  EXPECT_EQ(scan(operations).size(), 100U);
}

TEST_F(KernelMaps, OneNodeOfATrieHasOneKeyHoweverItWasWritten) {
  Map map = make(info_for(BPF_MAP_TYPE_LPM_TRIE));
  const TrieKey foreign{24, {10, 0, 0, 9}};
  const std::uint64_t value = 1;
  ASSERT_EQ(bpf_map_update_elem(map.fd(), &foreign, &value, BPF_ANY), 0);
  MapOperations operations = operations_on(std::move(map));
  const TrieKey canonical{24, {10, 0, 0, 0}};
  auto entries = scan(operations);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].first, RowKey::of(0, canonical));
  const auto results = carry_out(operations, {{RowKey::of(0, canonical), std::nullopt}});
  EXPECT_TRUE(results[0].freed);
  EXPECT_TRUE(scan(operations).empty());
}

class KernelPins : public KernelMaps {
 protected:
  void SetUp() override {
    KernelMaps::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) bpffs_.emplace();
  }
  [[nodiscard]] std::string pin_path(const std::string& name) const {
    return bpffs_->path() / name;
  }

 private:
  std::optional<test::TemporaryBpffsDirectory> bpffs_;
};

TEST_F(KernelPins, APinnedMapIsFoundAgainWithItsContents) {
  const std::string pin = pin_path("mg_test");
  std::uint32_t id = 0;
  {
    Map map = make(info_for(BPF_MAP_TYPE_HASH));
    id = map.info().id;
    ASSERT_TRUE(map.pin(pin));
    MapOperations operations = operations_on(std::move(map));
    carry_out(operations, {{RowKey::of(0, std::uint32_t{1}), row_value(std::uint64_t{2})}});
  }
  auto map = Map::open_pin(pin);
  ASSERT_TRUE(map) << map.error().text();
  EXPECT_EQ(map->info().id, id);
  EXPECT_EQ(map->info().type, BPF_MAP_TYPE_HASH);
  EXPECT_EQ(map->info().key_size, 4U);
  EXPECT_EQ(map->info().value_size, 8U);
  EXPECT_EQ(map->info().max_entries, 1000U);
  EXPECT_EQ(map->info().name, "mg_test");
  EXPECT_EQ(map->pin_path(), pin);
  MapOperations operations = operations_on(std::move(*map));
  EXPECT_EQ(scan(operations).size(), 1U);
  EXPECT_EQ(operations.status()[0].written, 0U);
}

TEST_F(KernelPins, PinErrorsSayWhatAndWhere) {
  const std::string pin = pin_path("mg_test");
  auto missing = Map::open_pin(pin);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ENOENT);
  EXPECT_EQ(missing.error().text(), "open pin \"" + pin + "\": No such file or directory");
  Map map = make(info_for(BPF_MAP_TYPE_HASH));
  ASSERT_TRUE(map.pin(pin));
  Map other = make(info_for(BPF_MAP_TYPE_HASH));
  const auto taken = other.pin(pin);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, EEXIST);
  ASSERT_TRUE(map.unpin());
  EXPECT_FALSE(std::filesystem::exists(pin));
  EXPECT_FALSE(map.unpin());
}

TEST_F(KernelPins, APinIsReplacedInOneStep) {
  const std::string pin = pin_path("mg_test");
  Map first = make(info_for(BPF_MAP_TYPE_HASH));
  Map second = make(info_for(BPF_MAP_TYPE_HASH, 2000));
  ASSERT_TRUE(first.pin(pin));
  EXPECT_TRUE(first.check_pin(pin));
  ASSERT_TRUE(second.replace_pin(pin));
  EXPECT_TRUE(second.check_pin(pin));
  const auto replaced = first.check_pin(pin);
  ASSERT_FALSE(replaced);
  EXPECT_THAT(replaced.error().text(), HasSubstr("not map " + std::to_string(first.info().id)));
  // Nothing else is left.
  const auto directory = std::filesystem::path(pin).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
}

TEST_F(KernelPins, APinOfAProgramIsNoMap) {
  const std::array<bpf_insn, 2> instructions{
      bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
      bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  const int program = bpf_prog_load(BPF_PROG_TYPE_SOCKET_FILTER, "mg_test", "GPL",
                                    instructions.data(), instructions.size(), nullptr);
  ASSERT_GE(program, 0);
  const std::string pin = pin_path("program");
  EXPECT_EQ(bpf_obj_pin(program, pin.c_str()), 0);
  const auto copied = Map::from_fd(program);
  close(program);
  const auto opened = Map::open_pin(pin);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().text(), "open pin \"" + pin + "\": is not a BPF map");
  EXPECT_FALSE(copied);
}

TEST_F(KernelPins, ALostMapIsOpenedAgainByItsPin) {
  const std::string pin = pin_path("mg_test");
  Map map = make(info_for(BPF_MAP_TYPE_HASH));
  ASSERT_TRUE(map.pin(pin));
  const int fd = map.fd();
  MapOperations operations = operations_on(std::move(map));
  close(fd);
  const std::vector<Operation> batch{
      {RowKey::of(0, std::uint32_t{1}), row_value(std::uint64_t{2})}};
  auto results = carry_out(operations, batch);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kTargetLost);
  results = carry_out(operations, batch);
  EXPECT_FALSE(results[0].error) << results[0].error->text;
  EXPECT_EQ(operations.status()[0].reopened, 1U);
  EXPECT_EQ(scan(operations).size(), 1U);
}

TEST_F(KernelPins, ALostMapWhosePinIsGoneOrOfAnotherKindStaysLost) {
  const std::string pin = pin_path("mg_test");
  Map map = make(info_for(BPF_MAP_TYPE_HASH));
  ASSERT_TRUE(map.pin(pin));
  const int fd = map.fd();
  MapOperations operations = operations_on(std::move(map));
  close(fd);
  const std::vector<Operation> batch{
      {RowKey::of(0, std::uint32_t{1}), row_value(std::uint64_t{2})}};
  carry_out(operations, batch);
  std::filesystem::remove(pin);
  auto results = carry_out(operations, batch);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kTargetLost);
  EXPECT_EQ(results[0].error->code, ENOENT);
  Map other = make(info_for(BPF_MAP_TYPE_LPM_TRIE));
  ASSERT_TRUE(other.pin(pin));
  results = carry_out(operations, batch);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kTargetLost);
  EXPECT_THAT(results[0].error->text, HasSubstr("another kind"));
}

TEST_F(KernelMaps, CreationErrorsNameTheMap) {
  MapInfo info = info_for(BPF_MAP_TYPE_HASH);
  info.key_size = 0;
  const auto created = Map::create(info);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().text(),
            "create map \"mg_test\": Invalid argument (hash, keys of 0 and values of 8 bytes, 1000 "
            "entries, flags 0x0)");
}

TEST_F(KernelMaps, ADuplicateOutlivesTheDescriptorItCameFrom) {
  const int fd = bpf_map_create(BPF_MAP_TYPE_HASH, "mg_other", 4, 8, 10, nullptr);
  ASSERT_GE(fd, 0);
  auto map = Map::from_fd(fd);
  close(fd);
  ASSERT_TRUE(map) << map.error().text();
  EXPECT_EQ(map->info().name, "mg_other");
  MapOperations operations = operations_on(std::move(*map));
  EXPECT_EQ(failures(carry_out(operations,
                               {{RowKey::of(0, std::uint32_t{1}), row_value(std::uint64_t{2})}})),
            0U);
}

// --- with the reconciler -------------------------------------------------------------------------

class KernelReconciling : public KernelMaps, public testing::WithParamInterface<bpf_map_type> {
 protected:
  [[nodiscard]] static MapOperations operations_of(const Map& map, MapCalls& calls) {
    std::vector<Map> maps;
    maps.push_back(Map::from_fd(map.fd()).value());
    return MapOperations::create(std::move(maps), calls,
                                 {.now = [] { return std::chrono::steady_clock::now(); }})
        .value();
  }
};

INSTANTIATE_TEST_SUITE_P(, KernelReconciling,
                         testing::Values(BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(KernelReconciling, AParkedRowGetsInWhenADeleteMakesRoom) {
  Agent agent(operations_on(make(info_for(GetParam(), 64))));
  for (std::uint32_t i = 0; i < 66; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  EXPECT_EQ(agent.reconciler.progress().done, 64U);
  EXPECT_EQ(agent.reconciler.progress().parked, 2U);
  auto transaction = agent.table.begin();
  transaction.erase(key_for(GetParam(), 7));
  std::move(transaction).commit(agent.now);
  agent.settle();  // no time has passed: woken by the delete, not by a retry
  EXPECT_EQ(agent.reconciler.progress().done, 64U);
  EXPECT_EQ(agent.reconciler.progress().parked, 1U);
  EXPECT_EQ(scan(agent.operations).size(), 64U);
}

TEST_P(KernelReconciling, ANewAgentAdoptsWhatItFindsRepairsAndRemoves) {
  constexpr std::uint32_t kRows = 5000;
  const Map map = make(info_for(GetParam(), 10000));
  {
    Agent first(operations_of(map, kernel_calls));
    auto transaction = first.table.begin();
    for (std::uint32_t i = 0; i < kRows; ++i)
      transaction.put(key_for(GetParam(), i), row_value(std::uint64_t{i} + 1));
    std::move(transaction).commit(first.now);
    first.settle();
    ASSERT_EQ(first.reconciler.progress().done, kRows);
    // 10 rows change in between, 20 more get lost, and 2000 that nobody wants come.
    std::vector<Operation> damage;
    for (std::uint32_t i = 0; i < 10; ++i)
      damage.push_back({key_for(GetParam(), i * 7), row_value(std::uint64_t{0xdead})});
    for (std::uint32_t i = 0; i < 20; ++i)
      damage.push_back({key_for(GetParam(), 1000 + i), std::nullopt});
    for (std::uint32_t i = 0; i < 2000; ++i)
      damage.push_back({key_for(GetParam(), kRows + i), row_value(std::uint64_t{1})});
    ASSERT_EQ(failures(carry_out(first.operations, damage)), 0U);
  }
  Agent second(operations_of(map, kernel_calls), {.start_with_resync = true});
  auto transaction = second.table.begin();
  for (std::uint32_t i = 0; i < kRows; ++i)
    transaction.put(key_for(GetParam(), i), row_value(std::uint64_t{i} + 1));
  std::move(transaction).commit(second.now);
  second.settle();
  const auto progress = second.reconciler.progress();
  EXPECT_EQ(progress.done, kRows);
  EXPECT_EQ(progress.rows, kRows);
  EXPECT_EQ(progress.resync.adopted, kRows - 30);
  EXPECT_EQ(progress.resync.removed, 2000U);
  EXPECT_EQ(progress.resync.failed, 0U);
  // Only what was wrong has been written.
  EXPECT_EQ(second.operations.status()[0].written, 30U);
  EXPECT_EQ(second.operations.status()[0].removed, 2000U);
  EXPECT_EQ(second.operations.status()[0].entries, kRows);
  const auto contents = scan(second.operations);
  ASSERT_EQ(contents.size(), kRows);
  for (const auto& [key, value] : contents) EXPECT_EQ(second.table.find(key), value);
}

TEST_P(KernelReconciling, ARestartWritesNothingWhenAllIsRight) {
  const Map map = make(info_for(GetParam(), 10000));
  const auto fill = [&](Agent& agent) {
    auto transaction = agent.table.begin();
    for (std::uint32_t i = 0; i < 10000; ++i)
      transaction.put(key_for(GetParam(), i), row_value(std::uint64_t{i} + 1));
    std::move(transaction).commit(agent.now);
    agent.settle();
  };
  {
    Agent first(operations_of(map, kernel_calls));
    fill(first);
  }
  Agent second(operations_of(map, kernel_calls), {.start_with_resync = true});
  fill(second);
  EXPECT_EQ(second.reconciler.progress().resync.adopted, 10000U);
  EXPECT_EQ(second.operations.status()[0].written, 0U);
  EXPECT_EQ(second.operations.status()[0].removed, 0U);
}

TEST_P(KernelReconciling, GoesOnWithALargerMapThatHasTakenTheOldOnesPlace) {
  const Map small = make(info_for(GetParam(), 100));
  const Map large = make(info_for(GetParam(), 1000));
  Agent agent(operations_of(small, kernel_calls));
  for (std::uint32_t i = 0; i < 100; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  MapOperations copy = operations_of(large, kernel_calls);
  for (const auto& [key, value] : scan(agent.operations)) carry_out(copy, {{key, value}});
  auto replacement = Map::from_fd(large.fd());
  ASSERT_TRUE(replacement);
  agent.operations.replace(0, std::move(*replacement));
  for (std::uint32_t i = 100; i < 200; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  EXPECT_EQ(agent.reconciler.progress().done, 200U);
  EXPECT_EQ(agent.operations.status()[0].info.max_entries, 1000U);
  EXPECT_EQ(agent.operations.status()[0].entries, 200U);
  EXPECT_EQ(scan(copy).size(), 200U);
}

TEST_P(KernelReconciling, DamageDoneByOthersIsRepairedByAResync) {
  const Map map = make(info_for(GetParam(), 1000));
  Agent agent(operations_of(map, kernel_calls));
  for (std::uint32_t i = 0; i < 1000; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  MapOperations vandal = operations_of(map, kernel_calls);
  carry_out(vandal, {{key_for(GetParam(), 1), row_value(std::uint64_t{99})},
                     {key_for(GetParam(), 2), std::nullopt},
                     {key_for(GetParam(), 3), std::nullopt},
                     {key_for(GetParam(), 2000), row_value(std::uint64_t{99})}});
  agent.reconciler.request_resync();
  agent.settle();
  const auto progress = agent.reconciler.progress();
  EXPECT_EQ(progress.resync.repaired, 3U);
  EXPECT_EQ(progress.resync.removed, 1U);
  EXPECT_EQ(progress.done, 1000U);
  const auto contents = scan(agent.operations);
  ASSERT_EQ(contents.size(), 1000U);
  for (const auto& [key, value] : contents) EXPECT_EQ(agent.table.find(key), value);
}

}  // namespace
}  // namespace mapgate::maps
