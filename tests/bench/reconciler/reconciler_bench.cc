// SPDX-License-Identifier: Apache-2.0
// What the reconciler costs, with a target that does nothing. Each case runs in a process of its
// own, so that none profits from memory that another one left.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/thread_driver.h>

#include "tests/bench/report.h"

namespace mapgate::reconciler {
namespace {

using namespace std::chrono_literals;
using bench::Figure;
using bench::median;
using bench::quantile;
using bench::report;

using Object = std::uint64_t;
using ObjectTable = Table<Object, Object>;
using ObjectReconciler = Reconciler<Object, Object>;

constexpr std::size_t kMillion = 1'000'000;
constexpr std::size_t kTransaction = 1000;
constexpr int kRuns = 5;

TimePoint now() {
  return std::chrono::steady_clock::now();
}
double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(now() - start).count();
}
double microseconds_since(TimePoint start) {
  return seconds_since(start) * 1e6;
}

// Does nothing, or fails by rule.
class Target : public Operations<Object, Object> {
 public:
  enum class Failing { kNever, kOnceEachTenth, kForeverBelow100k };
  explicit Target(Failing failing = Failing::kNever) : failing_(failing) {
    if (failing == Failing::kOnceEachTenth) failed_.resize(kMillion / 10);
  }

  void apply(std::span<const Operation<Object, Object>> batch,
             std::span<OperationResult> results) override {
    if (failing_ == Failing::kNever) return;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Object object = batch[i].key;
      if (failing_ == Failing::kForeverBelow100k && object < 100'000) {
        results[i].error = OperationError{ErrorClass::kPermanent, EINVAL, "never"};
      } else if (failing_ == Failing::kOnceEachTenth && object % 10 == 0 && !failed_[object / 10]) {
        failed_[object / 10] = true;
        results[i].error = OperationError{ErrorClass::kTransient, EBUSY, "once"};
      }
    }
  }
  std::expected<void, OperationError> scan_begin() override { return {}; }
  std::expected<bool, OperationError> scan_next(std::size_t,
                                                std::vector<std::pair<Object, Object>>&) override {
    return true;
  }

 private:
  Failing failing_;
  std::vector<bool> failed_;
};

// Writes objects [first, last) in transactions, as a user would.
Commit write(ObjectTable& table, Object first, Object last, Object value) {
  Commit commit;
  while (first < last) {
    auto transaction = table.begin();
    transaction.reserve(kTransaction);
    for (const Object end = std::min(first + kTransaction, last); first < end; ++first) {
      transaction.put(first, first + value);
    }
    commit = std::move(transaction).commit(now());
  }
  return commit;
}

void wait_until_realised(ObjectReconciler& reconciler, const Commit& commit) {
  std::promise<void> realised;
  const auto ticket =
      reconciler.wait_for_revision(commit.epoch, commit.revision, std::nullopt,
                                   [&](const GateResult&) { realised.set_value(); });
  if (std::holds_alternative<GateId>(ticket.value())) realised.get_future().wait();
}

// Seconds from the first write until everything is realised.
double run_noop(std::size_t objects, Target::Failing failing = Target::Failing::kNever) {
  ObjectTable table(Epoch{});
  Target target(failing);
  ObjectReconciler reconciler(table, target);
  const ThreadDriver driver(reconciler);
  const TimePoint start = now();
  wait_until_realised(reconciler, write(table, 0, objects, 0));
  return seconds_since(start);
}

// Seconds for what cannot be left out: a flat hash map and a vector of the same objects.
double run_peer(std::size_t objects) {
  boost::unordered_flat_map<Object, Object> map;
  std::vector<std::pair<Object, Object>> list;
  const TimePoint start = now();
  for (Object object = 0; object < objects; ++object) {
    map[object] = object;
    list.emplace_back(object, object);
  }
  const double seconds = seconds_since(start);
  if (map.size() + list.size() != 2 * objects) std::abort();
  return seconds;
}

void noop_1m() {
  std::vector<double> rates;
  std::vector<double> ratios;
  for (int run = 0; run < kRuns; ++run) {
    const double peer = run_peer(kMillion);
    const double seconds = run_noop(kMillion);
    rates.push_back(kMillion / seconds);
    ratios.push_back(peer / seconds);
  }
  report({"reconciler", "noop_1m", median(rates), "objects/s", ">= 4000000, ratio >= 0.35",
          "one thread, flat hash map and vector", median(ratios)});
}

void noop_1m_rss() {
  run_noop(kMillion);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report(
      {"reconciler", "noop_1m_rss", static_cast<double>(usage.ru_maxrss) / 1024, "MiB", "<= 120"});
}

// The cost of an object relative to noop_1m's, in the same process.
void noop_other(const char* name, std::size_t objects, int runs) {
  std::vector<double> costs;
  std::vector<double> ratios;
  for (int run = 0; run < runs; ++run) {
    const double million = run_noop(kMillion) / kMillion;
    const std::size_t repeats = std::max<std::size_t>(1, 200'000 / objects);
    double seconds = 0;
    for (std::size_t i = 0; i < repeats; ++i) seconds += run_noop(objects);
    costs.push_back(seconds / static_cast<double>(objects * repeats) * 1e9);
    ratios.push_back(costs.back() * 1e-9 / million);
  }
  report({"reconciler", name, median(costs), "ns/object", "ratio <= 2", "noop_1m", median(ratios)});
}

void rewrite_1m() {
  ObjectTable table(Epoch{});
  Target target;
  ObjectReconciler reconciler(table, target);
  const ThreadDriver driver(reconciler);
  wait_until_realised(reconciler, write(table, 0, kMillion, 0));
  std::mt19937_64 random(1);
  std::vector<double> rates;
  constexpr std::size_t kRewrites = 100'000;
  for (Object run = 1; run <= 2 * kRuns; ++run) {
    std::vector<Object> objects(kRewrites);
    for (Object& object : objects) object = random() % kMillion;
    const TimePoint start = now();
    Commit commit;
    for (std::size_t at = 0; at < kRewrites; at += kTransaction) {
      auto transaction = table.begin();
      transaction.reserve(kTransaction);
      for (std::size_t i = at; i < at + kTransaction; ++i)
        transaction.put(objects[i], objects[i] + run);
      commit = std::move(transaction).commit(now());
    }
    wait_until_realised(reconciler, commit);
    rates.push_back(kRewrites / seconds_since(start));
  }
  report({"reconciler", "rewrite_1m", median(rates), "objects/s", ">= 2000000"});
}

void fail_once() {
  std::vector<double> rates;
  std::vector<double> ratios;
  for (int run = 0; run < kRuns; ++run) {
    const double without = run_noop(kMillion);
    const double seconds = run_noop(kMillion, Target::Failing::kOnceEachTenth);
    rates.push_back(kMillion / seconds);
    ratios.push_back(without / seconds);
  }
  report({"reconciler", "fail_once", median(rates), "objects/s", "ratio >= 0.6", "noop_1m",
          median(ratios)});
}

void fail_forever() {
  constexpr Object kFailing = 100'000;
  std::vector<double> rates;
  std::vector<double> ratios;
  for (int run = 0; run < kRuns; ++run) {
    const double without = run_noop(kMillion);
    ObjectTable table(Epoch{});
    Target target(Target::Failing::kForeverBelow100k);
    ObjectReconciler reconciler(table, target);
    const ThreadDriver driver(reconciler);
    write(table, 0, kFailing, 0);
    while (reconciler.progress().errors < kFailing) std::this_thread::sleep_for(1ms);
    const TimePoint start = now();
    write(table, kFailing, kFailing + kMillion, 0);
    while (reconciler.progress().pending > 0) std::this_thread::yield();
    const double seconds = seconds_since(start);
    rates.push_back(kMillion / seconds);
    ratios.push_back(without / seconds);
  }
  report({"reconciler", "fail_forever", median(rates), "objects/s", "ratio >= 0.8", "noop_1m",
          median(ratios)});
}

// Microseconds from commit to opened, each behind (nearly) a million rows that wait.
std::vector<double> gated_latencies() {
  std::vector<double> latencies;
  ObjectTable table(Epoch{});
  Target target;
  ObjectReconciler reconciler(table, target);
  write(table, 0, kMillion, 0);
  const ThreadDriver driver(reconciler);
  Object object = kMillion;
  do {
    std::atomic<bool> opened = false;
    TimePoint opened_at;
    const TimePoint start = now();
    auto transaction = table.begin();
    transaction.put(object, 0);
    std::move(transaction).commit(start);
    const auto ticket =
        reconciler.wait_for_rows(std::span(&object, 1), std::nullopt, [&](const GateResult&) {
          opened_at = now();
          opened.store(true, std::memory_order_release);
        });
    if (std::holds_alternative<GateResult>(ticket.value())) {
      opened_at = now();
    } else {
      while (!opened.load(std::memory_order_acquire)) {
      }
    }
    latencies.push_back(std::chrono::duration<double, std::micro>(opened_at - start).count());
    ++object;
  } while (reconciler.progress().pending > kMillion * 9 / 10);
  return latencies;
}

// Microseconds from signalling an eventfd until the thread that sleeps on it runs.
std::vector<double> eventfd_latencies() {
  constexpr int kWakeups = 2000;
  std::vector<double> latencies;
  WakeupFd wakeup;
  std::atomic<int> round = 0;
  TimePoint start;
  std::thread sleeper([&] {
    for (int i = 0; i < kWakeups; ++i) {
      wakeup.wait(std::nullopt);
      latencies.push_back(microseconds_since(start));
      round.store(i + 1, std::memory_order_release);
    }
  });
  for (int i = 0; i < kWakeups; ++i) {
    std::this_thread::sleep_for(20us);  // so that it sleeps
    start = now();
    wakeup.signal();
    while (round.load(std::memory_order_acquire) <= i) {
    }
  }
  sleeper.join();
  return latencies;
}

void gated_behind_1m() {
  std::vector<double> p99s;
  std::vector<double> ratios;
  for (int run = 0; run < kRuns; ++run) {
    const double wakeup = quantile(eventfd_latencies(), 0.99);
    p99s.push_back(quantile(gated_latencies(), 0.99));
    ratios.push_back(p99s.back() / wakeup);
  }
  report({"reconciler", "gated_behind_1m", median(p99s), "us", "<= 100, ratio <= 3",
          "eventfd wakeup, p99", median(ratios)});
}

// Nanoseconds to commit and realise one row with `gates` others closed.
double realise_one(std::size_t gates) {
  ObjectTable table(Epoch{});
  const TimePoint start_of_all = now();
  // The rows that the gates wait for fail once, and are not tried again within this run.
  struct Stuck : Operations<Object, Object> {
    void apply(std::span<const Operation<Object, Object>> batch,
               std::span<OperationResult> results) override {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (batch[i].key < 1000)
          results[i].error = OperationError{ErrorClass::kTransient, EBUSY, "stuck"};
      }
    }
    std::expected<void, OperationError> scan_begin() override { return {}; }
    std::expected<bool, OperationError> scan_next(
        std::size_t, std::vector<std::pair<Object, Object>>&) override {
      return true;
    }
  } stuck;
  ObjectReconciler waiting(table, stuck, Options{.retry = {1h, 1h}});
  write(table, 0, 1000, 0);
  while (waiting.step(start_of_all).more) {
  }
  for (std::size_t gate = 0; gate < gates; ++gate) {
    const Object object = gate % 1000;
    if (gate % 2 == 0) {
      (void)waiting.wait_for_rows(std::span(&object, 1),
                                  start_of_all + 1h + std::chrono::microseconds(gate), {});
    } else {
      (void)waiting.wait_for_revision(table.epoch(), object + 1, start_of_all + 1h, {});
    }
  }
  std::vector<double> costs;
  for (Object round = 0; round < 2000; ++round) {
    const TimePoint start = now();
    for (Object i = 0; i < 10; ++i) {
      auto transaction = table.begin();
      transaction.put(5000 + i, round);
      std::move(transaction).commit(start);
      waiting.step(start);
    }
    costs.push_back(seconds_since(start) * 1e9 / 10);
  }
  return median(costs);
}

void gates_100k() {
  std::vector<double> costs;
  std::vector<double> ratios;
  for (int run = 0; run < kRuns; ++run) {
    const double without = realise_one(0);
    costs.push_back(realise_one(100'000));
    ratios.push_back(costs.back() / without);
  }
  report({"reconciler", "gates_100k", median(costs), "ns/row", "ratio <= 1.1", "no gate open",
          median(ratios)});
}

void commit_one() {
  ObjectTable table(Epoch{});
  Target target;
  ObjectReconciler reconciler(table, target);
  write(table, 0, 10'000, 0);
  std::vector<double> costs;
  for (Object round = 1; round < 20'000; ++round) {
    while (reconciler.step(TimePoint{}).more) {
    }
    const TimePoint start = now();
    for (Object i = 0; i < 100; ++i) {
      auto transaction = table.begin();
      transaction.put((round * 7919 + i * 104729) % 10'000, round);
      std::move(transaction).commit(start);
    }
    costs.push_back(seconds_since(start) * 1e9 / 100);
  }
  report({"reconciler", "commit_one", median(costs), "ns", "<= 150"});
}

const std::map<std::string, void (*)()> kCases = {
    {"noop_1m", noop_1m},
    {"noop_1m_rss", noop_1m_rss},
    {"noop_10k", [] { noop_other("noop_10k", 10'000, kRuns); }},
    {"noop_10m", [] { noop_other("noop_10m", 10 * kMillion, 3); }},
    {"rewrite_1m", rewrite_1m},
    {"fail_once", fail_once},
    {"fail_forever", fail_forever},
    {"gated_behind_1m", gated_behind_1m},
    {"gates_100k", gates_100k},
    {"commit_one", commit_one},
};

bool run_in_own_process(void (*run)()) {
  const pid_t child = fork();
  if (child == 0) {
    run();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace
}  // namespace mapgate::reconciler

// mapgate_bench_reconciler [CASE...]
int main(int argc, char** argv) {
  using mapgate::reconciler::kCases;
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) {
    for (const auto& [name, run] : kCases) names.push_back(name);
  }
  for (const std::string& name : names) {
    const auto found = kCases.find(name);
    if (found == kCases.end() || !mapgate::reconciler::run_in_own_process(found->second)) {
      std::fprintf(stderr, "%s: no such case, or it failed\n", name.c_str());
      return 1;
    }
  }
}
