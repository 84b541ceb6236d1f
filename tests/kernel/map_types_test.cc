// SPDX-License-Identifier: Apache-2.0
// Every map type on the running kernel: filled, changed, resynced, and read by bpftool.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mapgate/maps/dry_run.h>
#include <mapgate/maps/inner_map.h>
#include <mapgate/maps/lpm.h>

#include "tests/kernel/maps_fixture.h"

namespace mapgate::maps {
namespace {

using reconciler::ErrorClass;
using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::span<const std::byte> from) {
  Bytes bytes;
  for (const std::byte byte : from) bytes.push_back(std::to_integer<std::uint8_t>(byte));
  return bytes;
}

template <typename Number>
std::vector<std::byte> raw(Number number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text = "hex";
  for (const std::uint8_t byte : bytes_of(bytes)) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {' ', kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

std::string run(const std::string& command) {
  std::string output;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>&1").c_str(), "r"), pclose);
  std::array<char, 4096> buffer{};
  for (std::size_t size; (size = fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
    output.append(buffer.data(), size);
  return output;
}

std::string bpftool_map(const std::string& action, std::uint32_t id, const std::string& rest = {}) {
  return run("bpftool -j map " + action + " id " + std::to_string(id) + " " + rest);
}

Bytes bytes_in(const nlohmann::json& strings) {
  Bytes bytes;
  for (const auto& text : strings)
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(text.get<std::string>(), nullptr, 16)));
  return bytes;
}

using Dump = std::map<Bytes, Bytes>;

// What bpftool shows, as rows have it: the value that all CPUs hold; an inner map's entries.
Dump dump(const MapInfo& info) {
  Dump entries;
  const std::string text = bpftool_map("dump", info.id);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array()) {
    ADD_FAILURE() << text;
    return entries;
  }
  for (const auto& entry : json) {
    if (entry.contains("error") || (entry.contains("value") && entry["value"].contains("error")))
      continue;
    Bytes& value = entries[bytes_in(entry["key"])];
    if (is_per_cpu(info.type)) {
      value = bytes_in(entry["values"][0]["value"]);
      for (const auto& cpu : entry["values"]) EXPECT_EQ(bytes_in(cpu["value"]), value);
    } else {
      value = bytes_in(entry["value"]);
    }
  }
  return entries;
}

Dump contents_of(Table& table) {
  Dump entries;
  auto reader = table.changes_since(0);
  EXPECT_EQ(reader.read(1U << 30,
                        [&](const RowKey& key, const RowValue* value, auto) {
                          if (value) entries[bytes_of(key.bytes())] = bytes_of(value->bytes());
                        }),
            reconciler::ReadResult::kUpToDate);
  return entries;
}

void commit(Agent& agent, const std::vector<Operation>& changes) {
  auto transaction = agent.table.begin();
  for (const Operation& change : changes) {
    if (change.value)
      transaction.put(change.key, *change.value);
    else
      transaction.erase(change.key);
  }
  std::move(transaction).commit(agent.now);
}

void resync(Agent& agent) {
  agent.reconciler.request_resync();
  agent.settle();
}

class MapTypes : public KernelMaps {
 protected:
  [[nodiscard]] MapOperations operations_beside(const Map& map) {
    std::vector<Map> maps;
    maps.push_back(Map::from_fd(map.fd()).value());
    return operations_on(std::move(maps));
  }
};

class EveryPlainType : public MapTypes, public testing::WithParamInterface<bpf_map_type> {};

INSTANTIATE_TEST_SUITE_P(, EveryPlainType,
                         testing::Values(BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE,
                                         BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_HASH,
                                         BPF_MAP_TYPE_PERCPU_ARRAY),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(EveryPlainType, HoldsWhatBpftoolThenShows) {
  const Map map = make(info_for(GetParam(), 300));
  Agent agent(operations_beside(map));
  const auto expect_dump = [&] {
    Dump shown = dump(map.info());
    if (is_array(GetParam()))
      std::erase_if(shown, [](const auto& e) { return e.second == Bytes(8); });
    EXPECT_EQ(shown, contents_of(agent.table));
  };
  for (std::uint32_t i = 0; i < 300; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  expect_dump();
  for (std::uint32_t i = 0; i < 100; ++i) agent.put(i, i + 7000, GetParam());
  for (std::uint32_t i = 200; i < 300; ++i) commit(agent, {{key_for(GetParam(), i), std::nullopt}});
  agent.settle();
  expect_dump();
  MapOperations vandal = operations_beside(map);
  carry_out(vandal, {{key_for(GetParam(), 5), row_value(std::uint64_t{99})},
                     {key_for(GetParam(), 6), std::nullopt},
                     {key_for(GetParam(), 250), row_value(std::uint64_t{99})}});
  resync(agent);
  expect_dump();
  EXPECT_EQ(agent.reconciler.progress().resync.repaired, 2U);
  EXPECT_EQ(agent.reconciler.progress().resync.removed, 1U);
  const auto written = agent.operations.status()[0].written;
  resync(agent);
  EXPECT_EQ(agent.operations.status()[0].written, written) << "nothing was wrong";
}

// The count of repairs is the damage, whoever did it.
TEST_P(EveryPlainType, DamageByBpftoolIsRepairedAndCounted) {
  const Map map = make(info_for(GetParam(), 400));
  Agent agent(operations_beside(map));
  for (std::uint32_t i = 0; i < 200; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  const Dump right = dump(map.info());
  std::mt19937 random(7);
  std::set<std::uint32_t> damaged;
  while (damaged.size() < 12) damaged.insert(static_cast<std::uint32_t>(random() % 200));
  const std::string value = "value hex 63 00 00 00 00 00 00 00";
  for (const std::uint32_t number : damaged) {
    const std::string key = "key " + hex(key_for(GetParam(), number).bytes());
    const bool erases = random() % 2 == 0 && !is_array(GetParam());
    const std::string output = erases ? bpftool_map("delete", map.info().id, key)
                                      : bpftool_map("update", map.info().id, key + " " + value);
    ASSERT_THAT(output, testing::Not(HasSubstr("error")));
  }
  bpftool_map("update", map.info().id,
              "key " + hex(key_for(GetParam(), 300).bytes()) + " " + value);
  resync(agent);
  EXPECT_EQ(agent.reconciler.progress().resync.repaired, damaged.size());
  EXPECT_EQ(agent.reconciler.progress().resync.removed, 1U);
  EXPECT_EQ(dump(map.info()), right);
}

TEST_P(EveryPlainType, ADryRunReportsWhatAResyncWouldDoAndDoesNothing) {
  const Map map = make(info_for(GetParam(), 400));
  Agent agent(operations_beside(map));
  for (std::uint32_t i = 0; i < 200; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  MapOperations beside = operations_beside(map);
  carry_out(beside, {{key_for(GetParam(), 5), row_value(std::uint64_t{99})},
                     {key_for(GetParam(), 6), std::nullopt},
                     {key_for(GetParam(), 7), std::nullopt},
                     {key_for(GetParam(), 300), row_value(std::uint64_t{99})}});
  const Dump before = dump(map.info());
  DryRun dry_run(beside, agent.table, 3);
  for (bool end = false; !end;) end = dry_run.next(64).value();
  const DryRunReport& report = dry_run.report();
  EXPECT_EQ(report.right, 197U);
  // An array's elements are never missing.
  EXPECT_EQ(report.wrong, is_array(GetParam()) ? 3U : 1U);
  EXPECT_EQ(report.missing, is_array(GetParam()) ? 0U : 2U);
  EXPECT_EQ(report.unknown, 1U);
  EXPECT_EQ(report.first.size(), 3U) << "no more than asked for";
  EXPECT_EQ(dump(map.info()), before);
  resync(agent);
  EXPECT_EQ(agent.reconciler.progress().resync.repaired, report.wrong + report.missing);
  EXPECT_EQ(agent.reconciler.progress().resync.removed, report.unknown);
}

TEST_P(EveryPlainType, IsRightOnceOthersStopWritingToIt) {
  const Map map = make(info_for(GetParam(), 3000));
  Agent agent(operations_beside(map));
  for (std::uint32_t i = 0; i < 2000; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  {
    std::jthread vandal([&](const std::stop_token& stop) {
      std::mt19937 random(11);
      MapOperations operations = operations_beside(map);
      while (!stop.stop_requested()) {
        const auto key = key_for(GetParam(), static_cast<std::uint32_t>(random() % 3000));
        const bool erases = random() % 2 == 0;
        carry_out(operations,
                  {{key, erases ? std::nullopt : std::optional(row_value(std::uint64_t{99}))}});
      }
    });
    for (int i = 0; i < 10; ++i) {
      agent.reconciler.request_resync();
      for (int step = 0; step < 200 && agent.reconciler.step(agent.now).more; ++step) continue;
    }
  }
  for (int i = 0; i < 3; ++i) {
    agent.now += std::chrono::minutes(1);  // what failed is tried again
    resync(agent);
  }
  EXPECT_EQ(agent.reconciler.progress().done, 2000U);
  EXPECT_GT(agent.reconciler.progress().resync.repaired, 0U);
  Dump shown = dump(map.info());
  if (is_array(GetParam()))
    std::erase_if(shown, [](const auto& e) { return e.second == Bytes(8); });
  EXPECT_EQ(shown, contents_of(agent.table));
  const MapStatus status = agent.operations.status()[0];
  EXPECT_EQ(status.entries, is_array(GetParam()) ? 3000U : 2000U);
}

TEST_P(EveryPlainType, AMapFilledByOthersParksRowsUntilThereIsRoom) {
  if (is_array(GetParam())) return;  // never full
  const Map map = make(info_for(GetParam(), 64));
  Agent agent(operations_beside(map));
  MapOperations other = operations_beside(map);
  std::vector<Operation> foreign;
  for (std::uint32_t i = 1000; i < 1060; ++i)
    foreign.push_back({key_for(GetParam(), i), row_value(std::uint64_t{1})});
  carry_out(other, foreign);
  for (std::uint32_t i = 0; i < 30; ++i) agent.put(i, i + 1, GetParam());
  agent.settle();
  EXPECT_EQ(agent.reconciler.progress().done, 4U);
  EXPECT_EQ(agent.reconciler.progress().parked, 26U);
  const auto errors = agent.reconciler.first_errors(30);
  ASSERT_EQ(errors.size(), 26U);
  for (const auto& [key, status] : errors) {
    EXPECT_EQ(status.error->error_class, ErrorClass::kCapacity);
    EXPECT_EQ(status.error->text, "map \"mg_test\" is full (64 entries)");
  }
  // Found by the resync, deleted, and their room given to the rows that wait.
  resync(agent);
  EXPECT_EQ(agent.reconciler.progress().done, 30U);
  EXPECT_EQ(agent.reconciler.progress().parked, 0U);
  EXPECT_EQ(dump(map.info()), contents_of(agent.table));
}

TEST_P(EveryPlainType, SaysHowMuchRoomThereIs) {
  MapOperations operations = operations_on(make(info_for(GetParam(), 100)));
  const auto fill = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t i = from; i < to; ++i)
      carry_out(operations, {{key_for(GetParam(), i), row_value(std::uint64_t{1})}});
  };
  fill(0, 79);
  EXPECT_FALSE(operations.status()[0].is_nearly_full());
  EXPECT_EQ(operations.status()[0].room(), is_array(GetParam()) ? 0U : 21U);
  fill(79, 80);
  EXPECT_EQ(operations.status()[0].is_nearly_full(), !is_array(GetParam()));
}

class PerCpuType : public MapTypes, public testing::WithParamInterface<bpf_map_type> {};

INSTANTIATE_TEST_SUITE_P(, PerCpuType,
                         testing::Values(BPF_MAP_TYPE_PERCPU_HASH, BPF_MAP_TYPE_PERCPU_ARRAY),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(PerCpuType, OneCpuThatDiffersIsRepaired) {
  const unsigned cpus = kernel_calls.possible_cpus();
  MAPGATE_REQUIRE(cpus >= 2, "one CPU cannot differ from itself");
  // Values whose size is no multiple of 8: each CPU's is rounded up.
  MapInfo info = info_for(GetParam(), 16);
  info.value_size = 5;
  const Map map = make(info);
  Agent agent(operations_beside(map));
  const std::array<std::byte, 5> right{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                       std::byte{5}};
  for (std::uint32_t i = 0; i < 4; ++i) commit(agent, {{key_for(GetParam(), i), RowValue(right)}});
  agent.settle();
  std::vector<std::array<std::byte, 8>> values(cpus);
  for (auto& value : values) std::ranges::copy(right, value.begin());
  values.back()[0] = std::byte{9};
  const std::uint32_t key = 2;
  ASSERT_EQ(bpf_map_update_elem(map.fd(), &key, values.data(), BPF_ANY), 0);
  resync(agent);
  EXPECT_EQ(agent.reconciler.progress().resync.repaired, 1U);
  EXPECT_EQ(agent.operations.status()[0].written, 5U);
  ASSERT_EQ(bpf_map_lookup_elem(map.fd(), &key, values.data()), 0);
  for (const auto& value : values)
    EXPECT_TRUE(std::ranges::equal(std::span(value).first(5), right));
  resync(agent);
  EXPECT_EQ(agent.operations.status()[0].written, 5U);
}

class ArrayType : public MapTypes, public testing::WithParamInterface<bpf_map_type> {};

INSTANTIATE_TEST_SUITE_P(, ArrayType,
                         testing::Values(BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_ARRAY),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(ArrayType, ARowOfZerosIsAdoptedAtStartAndLeftAloneByEveryResync) {
  const Map map = make(info_for(GetParam(), 64));
  Agent agent(operations_beside(map), {.start_with_resync = true});
  for (std::uint32_t i = 0; i < 10; ++i) agent.put(i, 0, GetParam());
  agent.settle();
  resync(agent);
  EXPECT_EQ(agent.reconciler.progress().done, 10U);
  EXPECT_EQ(agent.reconciler.progress().resync.adopted, 10U);
  EXPECT_EQ(agent.reconciler.progress().resync.removed, 0U);
  EXPECT_EQ(agent.operations.status()[0].written, 0U);
  EXPECT_EQ(agent.table.size(), 10U);
}

// --- maps of maps --------------------------------------------------------------------------------

class MapOfMapsType : public MapTypes, public testing::WithParamInterface<bpf_map_type> {
 protected:
  MapInfo inner{.type = BPF_MAP_TYPE_HASH,
                .key_size = 4,
                .value_size = 8,
                .max_entries = 32,
                .name = "mg_inner"};

  [[nodiscard]] Map make_outer(std::uint32_t max_entries = 16) {
    const Map pattern = make(inner);
    MapInfo info{.type = GetParam(),
                 .key_size = 4,
                 .value_size = 4,
                 .max_entries = max_entries,
                 .name = "mg_outer"};
    auto outer = Map::create(info, &pattern);
    if (!outer) throw std::runtime_error(outer.error().text());
    return std::move(*outer);
  }
  [[nodiscard]] MapOperations operations_of(const Map& outer) {
    std::vector<Map> maps;
    maps.push_back(Map::from_fd(outer.fd()).value());
    return operations_on(std::move(maps), {{0, inner}});
  }
  // An inner map with entries 0 to `count`.
  [[nodiscard]] RowValue value_of(std::uint32_t count, std::uint64_t add = 1) const {
    std::vector<InnerEntry> entries;
    for (std::uint32_t i = count; i-- > 0;)
      entries.emplace_back(raw(std::uint32_t{i}), raw(std::uint64_t{i} + add));
    return inner_map_value(inner, std::move(entries)).value();
  }
  [[nodiscard]] static std::uint32_t inner_id(const Map& outer, std::uint32_t key) {
    std::uint32_t id = 0;
    EXPECT_EQ(bpf_map_lookup_elem(outer.fd(), &key, &id), 0);
    return id;
  }
  // What bpftool shows of the outer map's inner maps.
  [[nodiscard]] std::map<Bytes, Dump> dump_all(const Map& outer) const {
    std::map<Bytes, Dump> all;
    for (const auto& [key, value] : dump(outer.info())) {
      std::uint32_t id;
      std::memcpy(&id, value.data(), sizeof id);
      all[key] = dump({.id = id, .type = inner.type});
    }
    return all;
  }
  [[nodiscard]] std::map<Bytes, Dump> wanted(Table& table) const {
    std::map<Bytes, Dump> all;
    for (const auto& [key, value] : contents_of(table)) {
      Dump& entries = all[key];
      const std::span bytes = std::as_bytes(std::span(value));
      for_each_inner_entry(inner, bytes, [&](auto inner_key, auto element) {
        entries[bytes_of(inner_key)] = bytes_of(element);
      });
    }
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(, MapOfMapsType,
                         testing::Values(BPF_MAP_TYPE_HASH_OF_MAPS, BPF_MAP_TYPE_ARRAY_OF_MAPS),
                         [](const auto& type) { return describe_type(type.param); });

TEST_P(MapOfMapsType, HoldsWhatBpftoolThenShows) {
  const Map outer = make_outer();
  Agent agent(operations_of(outer));
  commit(agent, {{RowKey::of(0, 1U), value_of(3)},
                 {RowKey::of(0, 2U), value_of(0)},
                 {RowKey::of(0, 9U), value_of(32)}});
  agent.settle();
  EXPECT_EQ(agent.reconciler.progress().done, 3U);
  EXPECT_EQ(dump_all(outer), wanted(agent.table));
  commit(agent, {{RowKey::of(0, 1U), value_of(4, 100)}, {RowKey::of(0, 9U), std::nullopt}});
  agent.settle();
  EXPECT_EQ(dump_all(outer), wanted(agent.table));
  EXPECT_EQ(agent.operations.status()[0].entries, 2U);
}

TEST_P(MapOfMapsType, AnInnerMapIsReplacedAsAWholeAndTheOldOneIsReleased) {
  const Map outer = make_outer();
  Agent agent(operations_of(outer));
  commit(agent, {{RowKey::of(0, 1U), value_of(3)}});
  agent.settle();
  const std::uint32_t before = inner_id(outer, 1);
  {
    const Map held = Map::open_id(before).value();
    const std::uint32_t key = 0;
    const std::uint64_t value = 5;
    EXPECT_EQ(bpf_map_update_elem(held.fd(), &key, &value, BPF_ANY), -EPERM) << "it is frozen";
  }
  commit(agent, {{RowKey::of(0, 1U), value_of(5)}});
  agent.settle();
  EXPECT_NE(inner_id(outer, 1), before);
  // The kernel lets go of it a moment later.
  for (int i = 0; i < 200 && Map::open_id(before); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(Map::open_id(before));
}

TEST_P(MapOfMapsType, InnerMapsThatAreEqualAreAdoptedAndOthersReplaced) {
  const Map outer = make_outer();
  std::vector<Operation> rows;
  for (std::uint32_t i = 0; i < 10; ++i) rows.push_back({RowKey::of(0, i), value_of(i + 1)});
  {
    Agent first(operations_of(outer));
    commit(first, rows);
    first.settle();
  }
  // Somebody puts another inner map in the place of one, takes one away, and adds one.
  MapOperations other = operations_of(outer);
  carry_out(other, {{RowKey::of(0, 3U), value_of(4, 50)},
                    {RowKey::of(0, 4U), std::nullopt},
                    {RowKey::of(0, 12U), value_of(1)}});
  const std::uint32_t kept = inner_id(outer, 7);
  Agent second(operations_of(outer), {.start_with_resync = true});
  commit(second, rows);
  second.settle();
  EXPECT_EQ(second.reconciler.progress().resync.adopted, 8U);
  EXPECT_EQ(second.reconciler.progress().resync.removed, 1U);
  EXPECT_EQ(second.operations.status()[0].written, 2U);
  EXPECT_EQ(second.reconciler.progress().done, 10U);
  EXPECT_EQ(inner_id(outer, 7), kept);
  EXPECT_EQ(dump_all(outer), wanted(second.table));
}

TEST_P(MapOfMapsType, RefusesWhatIsNoInnerMap) {
  const Map outer = make_outer();
  MapOperations operations = operations_of(outer);
  const auto results = carry_out(operations, {{RowKey::of(0, 1U), row_value(std::uint64_t{1})},
                                              {RowKey::of(0, 2U), value_of(2)},
                                              {RowKey::of(0, 99U), value_of(2)}});
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kPermanent);
  EXPECT_EQ(results[0].error->text, "map \"mg_outer\": 8 bytes are no entries of 12");
  EXPECT_FALSE(results[1].error);
  EXPECT_EQ(results[2].error.has_value(), GetParam() == BPF_MAP_TYPE_ARRAY_OF_MAPS);
  if (results[2].error) {
    EXPECT_EQ(results[2].error->error_class, ErrorClass::kPermanent);
  }
}

TEST_P(MapOfMapsType, InnerMapsOfAnotherKindThanTheOuterMapTakesFailPermanently) {
  const Map outer = make_outer();
  inner.value_size = 16;
  MapOperations operations = operations_of(outer);
  const auto results = carry_out(operations, {{RowKey::of(0, 1U), RowValue()}});
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->error_class, ErrorClass::kPermanent);
  EXPECT_THAT(results[0].error->text, HasSubstr("made another way"));
}

TEST_P(MapOfMapsType, NeedsToKnowHowItsInnerMapsAreMade) {
  std::vector<Map> maps;
  maps.push_back(make_outer());
  const auto made = MapOperations::create(std::move(maps), kernel_calls,
                                          {.now = [] { return std::chrono::steady_clock::now(); }});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().text(), "use map \"mg_outer\": nothing says how its inner maps are made");
}

TEST_P(MapOfMapsType, InnerTriesAndArraysHaveOneFormToo) {
  inner.type = BPF_MAP_TYPE_ARRAY;
  const Map outer = make_outer();
  Agent agent(operations_of(outer));
  commit(agent, {{RowKey::of(0, 1U), value_of(32, 0)}});  // entry 0 is zeros, and left out
  agent.settle();
  EXPECT_EQ(agent.reconciler.progress().done, 1U);
  resync(agent);
  EXPECT_EQ(agent.operations.status()[0].written, 1U);
}

}  // namespace
}  // namespace mapgate::maps
