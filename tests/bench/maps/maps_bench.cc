// SPDX-License-Identifier: Apache-2.0
// What the library costs on real maps, beside the bare system calls on maps of the same kind, in
// turns.
#include <bpf/bpf.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <mapgate/maps/map_operations.h>
#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/thread_driver.h>

#include "tests/bench/report.h"

namespace mapgate::maps {
namespace {

using namespace std::chrono_literals;
using bench::median;
using bench::quantile;
using bench::report;
using RowTable = reconciler::Table<RowKey, RowValue, RowKeyHash>;
using RowReconciler = reconciler::Reconciler<RowKey, RowValue, RowKeyHash>;

constexpr std::uint32_t kMillion = 1'000'000;
constexpr std::uint32_t kTransaction = 1000;
constexpr std::uint32_t kBareBatch = 4096;
constexpr int kRuns = 3;

reconciler::TimePoint now() {
  return std::chrono::steady_clock::now();
}
double microseconds_since(reconciler::TimePoint start) {
  return std::chrono::duration<double, std::micro>(now() - start).count();
}

template <typename Result, typename Error>
Result checked(std::expected<Result, Error> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "maps_bench: %s\n", result.error().text().c_str());
  std::exit(1);
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "maps_bench: %s\n", what);
  std::exit(1);
}

// 16 bytes, as a trie's key and as a hash's. Spread over the address space as names' addresses are.
struct Key {
  std::uint32_t prefix_length = 96;
  std::array<std::uint32_t, 3> data{};
};
Key key_of(std::uint32_t number) {
  return {.data = {1, number * 0x9e3779b1U, number}};
}

Map make_map(bpf_map_type type, std::uint32_t max_entries = kMillion + 1000) {
  const bool trie = type == BPF_MAP_TYPE_LPM_TRIE;
  return checked(Map::create({.type = type,
                              .key_size = sizeof(Key),
                              .value_size = 8,
                              .max_entries = max_entries,
                              .flags = trie ? std::uint32_t{BPF_F_NO_PREALLOC} : 0U,
                              .name = "mg_bench"}));
}

// A table, the map that it is mirrored into, and a thread that does it.
class Agent {
 public:
  explicit Agent(Map map)
      : operations_(make_operations(std::move(map), calls_)),
        reconciler_(table_, operations_),
        driver_(reconciler_) {}

  [[nodiscard]] RowTable& table() { return table_; }
  [[nodiscard]] RowReconciler& reconciler() { return reconciler_; }
  // Only while nothing is due.
  [[nodiscard]] MapStatus status() const { return operations_.status()[0]; }

  reconciler::Commit change_all(bool erase) {
    reconciler::Commit commit;
    for (std::uint32_t number = 0; number < kMillion;) {
      auto transaction = table_.begin();
      transaction.reserve(kTransaction);
      for (const std::uint32_t end = number + kTransaction; number < end; ++number) {
        const RowKey key = RowKey::of(0, key_of(number));
        if (erase)
          transaction.erase(key);
        else
          transaction.put(key, row_value(std::uint64_t{number}));
      }
      commit = std::move(transaction).commit(now());
    }
    return commit;
  }
  void wait(const reconciler::Commit& commit) {
    std::promise<void> realised;
    const auto ticket =
        reconciler_.wait_for_revision(commit.epoch, commit.revision, std::nullopt,
                                      [&](const reconciler::GateResult&) { realised.set_value(); });
    if (std::holds_alternative<reconciler::GateId>(ticket.value())) realised.get_future().wait();
  }
  // Commits one row and waits for it by a row gate.
  void write_urgent(std::uint32_t number, std::uint64_t value) {
    const std::array keys{RowKey::of(0, key_of(number))};
    auto transaction = table_.begin();
    transaction.put(keys[0], row_value(value));
    std::move(transaction).commit(now());
    std::promise<void> realised;
    const auto ticket = reconciler_.wait_for_rows(
        keys, std::nullopt, [&](const reconciler::GateResult&) { realised.set_value(); });
    if (std::holds_alternative<reconciler::GateId>(ticket.value())) realised.get_future().wait();
  }

 private:
  static MapOperations make_operations(Map map, MapCalls& calls) {
    std::vector<Map> maps;
    maps.push_back(std::move(map));
    return checked(MapOperations::create(std::move(maps), calls, {.now = now}));
  }

  KernelMapCalls calls_;
  RowTable table_{reconciler::Epoch{}};
  MapOperations operations_;
  RowReconciler reconciler_;
  reconciler::ThreadDriver<RowKey, RowValue, RowKeyHash> driver_;
};

struct BareRows {
  std::vector<Key> keys = std::vector<Key>(kMillion);
  std::vector<std::uint64_t> values = std::vector<std::uint64_t>(kMillion);
  BareRows() {
    for (std::uint32_t i = 0; i < kMillion; ++i) {
      keys[i] = key_of(i);
      values[i] = i;
    }
  }
};

double bare_update(const Map& map, const BareRows& rows) {
  const auto start = now();
  for (std::uint32_t at = 0; at < kMillion; at += kBareBatch) {
    std::uint32_t count = std::min(kBareBatch, kMillion - at);
    check(bpf_map_update_batch(map.fd(), &rows.keys[at], &rows.values[at], &count, nullptr) == 0,
          "bare update failed");
  }
  return microseconds_since(start);
}

double bare_delete(const Map& map, const BareRows& rows) {
  const auto start = now();
  for (std::uint32_t at = 0; at < kMillion; at += kBareBatch) {
    std::uint32_t count = std::min(kBareBatch, kMillion - at);
    check(bpf_map_delete_batch(map.fd(), &rows.keys[at], &count, nullptr) == 0,
          "bare delete failed");
  }
  return microseconds_since(start);
}

double bare_dump(const Map& map) {
  std::vector<Key> keys(kBareBatch);
  std::vector<std::uint64_t> values(kBareBatch);
  Key cursor;
  std::uint32_t found = 0;
  const auto start = now();
  for (int error = 0; error == 0;) {
    std::uint32_t count = kBareBatch;
    error = -bpf_map_lookup_batch(map.fd(), found == 0 ? nullptr : &cursor, &cursor, keys.data(),
                                  values.data(), &count, nullptr);
    check(error == 0 || error == ENOENT, "bare dump failed");
    found += count;
  }
  check(found >= kMillion, "bare dump is not whole");
  return microseconds_since(start);
}

// All on one map, which is empty between two measurements: a map that is let go is freed by a
// kernel thread, and that takes a core from what is measured next.
void rates(bpf_map_type type, const std::string& name) {
  const BareRows rows;
  const Map map = make_map(type);
  std::array<std::vector<double>, 2> bare;
  std::array<std::vector<double>, 2> ours;
  for (int run = 0; run < kRuns; ++run) {
    bare[0].push_back(bare_update(map, rows));
    bare[1].push_back(bare_delete(map, rows));
    Agent agent(checked(Map::from_fd(map.fd())));
    for (const bool erase : {false, true}) {
      const auto start = now();
      agent.wait(agent.change_all(erase));
      ours[erase].push_back(microseconds_since(start));
    }
    check(agent.status().written == kMillion && agent.status().removed == kMillion,
          "not every row was carried out once");
  }
  for (const bool erase : {false, true})
    report({"maps", (erase ? "delete_" : "update_") + name + "_1m",
            kMillion / median(ours[erase]) * 1e6, "rows/s", "ratio >= 0.9", "bare batch calls",
            median(bare[erase]) / median(ours[erase])});
}

void resync_hash_1m() {
  Map map = make_map(BPF_MAP_TYPE_HASH);
  const Map same = checked(Map::from_fd(map.fd()));
  Agent agent(std::move(map));
  agent.wait(agent.change_all(false));
  std::vector<double> bare;
  std::vector<double> ours;
  for (std::uint64_t run = 1; run <= kRuns; ++run) {
    bare.push_back(bare_dump(same));
    const auto start = now();
    agent.reconciler().request_resync();
    while (agent.reconciler().progress().resync.completed < run) std::this_thread::sleep_for(1ms);
    ours.push_back(microseconds_since(start));
  }
  check(agent.status().written == kMillion, "a resync wrote what was right");
  report({"maps", "resync_hash_1m", kMillion / median(ours) * 1e6, "rows/s", "ratio >= 0.75",
          "bare lookup_batch dump", median(bare) / median(ours)});
}

void urgent_p99() {
  Agent agent(make_map(BPF_MAP_TYPE_HASH));
  const auto bulk = agent.change_all(false);
  std::vector<double> times;
  for (std::uint32_t i = 0; agent.reconciler().lowest_unreconciled() <= bulk.revision; ++i) {
    const auto start = now();
    agent.write_urgent(kMillion + i % 1000, i);
    times.push_back(microseconds_since(start));
    std::this_thread::sleep_for(500us);
  }
  check(times.size() >= 100, "the bulk was over too soon");
  report({"maps", "urgent_p99", quantile(times, 0.99) / 1000, "ms", "<= 2"});
}

void urgent_idle() {
  const Map map = make_map(BPF_MAP_TYPE_HASH);
  KernelMapCalls calls;
  std::vector<Map> maps;
  maps.push_back(checked(Map::from_fd(map.fd())));
  MapOperations operations = checked(MapOperations::create(std::move(maps), calls, {.now = now}));
  RowTable table{reconciler::Epoch{}};
  RowReconciler reconciler(table, operations);
  std::vector<double> bare;
  std::vector<double> ours;
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const Key key = key_of(i % 1000);
    const std::uint64_t value = i;
    auto start = now();
    check(bpf_map_update_elem(map.fd(), &key, &value, BPF_ANY) == 0, "bare update failed");
    bare.push_back(microseconds_since(start));
    start = now();
    auto transaction = table.begin();
    transaction.put(RowKey::of(0, key_of(2000 + i % 1000)), row_value(value));
    std::move(transaction).commit(start);
    reconciler.step(start);
    ours.push_back(microseconds_since(start));
  }
  check(reconciler.lowest_unreconciled() > table.revision(), "a row was not realised in one step");
  report({"maps", "urgent_idle", median(ours), "us", "ratio <= 5", "bare single update",
          median(ours) / median(bare)});
}

}  // namespace
}  // namespace mapgate::maps

// Without arguments everything, else the measurements named: hash, lpm, resync, urgent, idle.
int main(int argc, char** argv) {
  using namespace mapgate::maps;
  const std::vector<std::pair<std::string, std::function<void()>>> measurements{
      {"hash", [] { rates(BPF_MAP_TYPE_HASH, "hash"); }},
      {"lpm", [] { rates(BPF_MAP_TYPE_LPM_TRIE, "lpm"); }},
      {"resync", resync_hash_1m},
      {"urgent", urgent_p99},
      {"idle", urgent_idle}};
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  for (const auto& [name, measure] : measurements)
    if (wanted.empty() || std::ranges::find(wanted, name) != wanted.end()) measure();
  return 0;
}
