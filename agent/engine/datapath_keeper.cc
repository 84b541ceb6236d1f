// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/datapath_keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;

constexpr auto kInterval = std::chrono::seconds(1);
// Each has a dozen links, which cost a microsecond or two each.
constexpr std::size_t kCgroupsPerInspection = 64;
// Between two slices the loop does other things.
constexpr std::size_t kCopySlice = 4096;

}  // namespace

DatapathKeeper::DatapathKeeper(const Environment& environment)
    : io_(environment.io),
      datapath_(environment.datapath),
      operations_(environment.operations),
      map_names_(environment.map_names),
      open_map_(environment.open_map),
      log_(environment.log),
      timer_(environment.io),
      turn_(environment.io),
      capacity_(environment.log) {}

void DatapathKeeper::start(ReconcileLoop& loop) {
  loop_ = &loop;
  asio::co_spawn(io_, keep(), asio::detached);
}

asio::awaitable<void> DatapathKeeper::keep() {
  const auto alive = std::weak_ptr(alive_);
  for (;;) {
    timer_.expires_after(kInterval);
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (alive.expired()) co_return;
    if (!replacing_) co_await inspect();
    capacity_.update(operations_.status());
  }
}

asio::awaitable<void> DatapathKeeper::inspect() {
  datapath::Inspection found = datapath_.inspect(kCgroupsPerInspection);
  ++health_.inspections;
  health_.repaired += found.repaired.size();
  for (const std::string& repair : found.repaired) log_.warn("{}", repair);
  if (!found.repaired.empty()) health_.last_repair = found.repaired.back();
  const bool something_new = found.problems != health_.problems;
  log_problems(std::move(found.problems));
  // What could not be put right a second ago is tried again when something changes.
  if (found.frozen.empty() || !something_new) co_return;
  const auto replaced = co_await replace(datapath_.sizes(), found.frozen);
  if (!replaced) {
    log_.error("cannot replace frozen maps: {}", replaced.error());
    co_return;
  }
  for (const std::string& name : found.frozen) {
    ++health_.repaired;
    health_.last_repair = "map " + name + " was frozen: replaced by a copy";
    log_.warn("{}", health_.last_repair);
  }
  log_problems(datapath_.inspect(0).problems);
}

void DatapathKeeper::log_problems(std::vector<std::string> problems) {
  for (const std::string& problem : problems)
    if (!known_problems_.contains(problem)) log_.error("{}", problem);
  known_problems_ = {problems.begin(), problems.end()};
  health_.problems = std::move(problems);
}

asio::awaitable<DatapathKeeper::Outcome> DatapathKeeper::resize(policy::MapSizes sizes) {
  co_return co_await replace(
      {.addresses = sizes.addresses, .prefixes = sizes.prefixes, .ports = sizes.ports}, {});
}

std::expected<void, std::string> DatapathKeeper::contents_complete() {
  if (auto switched = datapath_.switch_over(); !switched)
    return std::unexpected(switched.error().message());
  log_.info("the maps of the new layout are filled and in use");
  return {};
}

asio::awaitable<DatapathKeeper::Outcome> DatapathKeeper::replace(datapath::MapSizes sizes,
                                                                 std::vector<std::string> names) {
  while (replacing_) {
    turn_.expires_at(asio::steady_timer::time_point::max());
    co_await turn_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  auto next = datapath_.replace_maps(sizes, names);
  if (!next) co_return std::unexpected(next.error().message());
  if (next->names().empty()) co_return Outcome();
  replacing_ = true;
  loop_->pause();
  Outcome outcome = co_await copy_and_finish(*next);
  if (outcome) use_new_maps(next->names());
  loop_->resume();
  replacing_ = false;
  turn_.cancel();
  co_return outcome;
}

asio::awaitable<DatapathKeeper::Outcome> DatapathKeeper::copy_and_finish(
    datapath::MapReplacement& next) {
  for (;;) {
    const auto copied = next.copy(kCopySlice);
    if (!copied) co_return std::unexpected(copied.error().message());
    if (*copied) break;
    co_await asio::post(io_, asio::use_awaitable);
  }
  if (auto finished = next.finish(); !finished)
    co_return std::unexpected(finished.error().message());
  co_return Outcome();
}

void DatapathKeeper::use_new_maps(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto found = std::ranges::find(map_names_, name);
    if (found == map_names_.end()) continue;
    const auto index = static_cast<maps::MapIndex>(found - map_names_.begin());
    if (auto map = open_map_(name)) {
      operations_.replace(index, std::move(*map));
      // Rows that did not fit, or could not be written, may be able to now.
      loop_->reconciler().target_changed(index);
    } else {
      log_.error("{}", map.error());
    }
  }
  loop_->reconciler().request_resync();
}

}  // namespace mapgate::engine
