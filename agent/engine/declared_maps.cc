// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/declared_maps.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/engine/background.h"

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using policy::MapSpec;
using policy::SpecError;

// How often settled() looks.
constexpr auto kSettleInterval = std::chrono::milliseconds(2);

// What the path leads to, as far as it exists.
fs::path as_it_is(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path, error);
  return error ? path.lexically_normal() : result;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// The entries go once they are in force: they may be most of the memory.
MapSpec without_entries(MapSpec spec) {
  spec.entries = {};
  return spec;
}

}  // namespace

std::string_view to_string(DeclaredMapState state) {
  switch (state) {
    case DeclaredMapState::kWaiting:
      return "waiting";
    case DeclaredMapState::kFailed:
      return "failed";
    case DeclaredMapState::kSyncing:
      return "syncing";
    case DeclaredMapState::kInSync:
      return "in sync";
  }
  return "unknown";
}

DeclaredMapState DeclaredMaps::Entry::state() const {
  if (map) return map->settled() ? DeclaredMapState::kInSync : DeclaredMapState::kSyncing;
  if (loading) return DeclaredMapState::kSyncing;
  return error.empty() ? DeclaredMapState::kWaiting : DeclaredMapState::kFailed;
}

DeclaredMaps::DeclaredMaps(const DeclaredMap::Environment& environment, Options options)
    : environment_(environment),
      options_(std::move(options)),
      spec_file_(options_.spec_file.native()),
      retry_timer_(environment.io) {}

DeclaredMaps::~DeclaredMaps() {
  stop_.request_stop();
  loader_.join();
}

const DeclaredMaps::Entry* DeclaredMaps::find(std::string_view name) const {
  const auto found =
      std::ranges::find_if(entries_, [&](const auto& entry) { return entry->spec.name == name; });
  return found == entries_.end() ? nullptr : found->get();
}

DeclaredMaps::Entry* DeclaredMaps::find_same(const MapSpec& spec) {
  const auto found = std::ranges::find_if(entries_, [&](const auto& entry) {
    return entry->spec.name == spec.name && entry->spec.pin == spec.pin && entry->map;
  });
  return found == entries_.end() ? nullptr : found->get();
}

// --- reading what is declared

std::vector<SpecError> DeclaredMaps::check_pins(const std::vector<MapSpec>& specs) const {
  std::vector<SpecError> faults;
  const fs::path own = as_it_is(options_.own_folder);
  for (const MapSpec& spec : specs) {
    if (!is_inside(as_it_is(fs::path(spec.pin).parent_path()), own)) continue;
    faults.push_back({.file = spec_file_,
                      .line = spec.location.line,
                      .column = spec.location.column,
                      .pointer = spec.pointer + "/pin",
                      .reason = own.native() + " holds mapgate's own maps"});
  }
  return faults;
}

asio::awaitable<std::expected<DeclaredMaps::PreparedPointer, std::vector<SpecError>>>
DeclaredMaps::prepare(std::vector<MapSpec> specs) {
  std::vector<SpecError> faults = check_pins(specs);
  if (!faults.empty()) co_return std::unexpected(std::move(faults));
  auto prepared = std::make_unique<Prepared>();
  for (MapSpec& spec : specs) {
    Prepared::Part part{.spec = std::make_shared<MapSpec>(std::move(spec))};
    if (const Entry* same = find_same(*part.spec)) {
      part.target = std::make_shared<DeclaredTarget>(
          DeclaredTarget{same->map->info(), same->map->own_layouts()});
    } else if (auto opened = open_declared_map(part.spec->pin)) {
      part.target =
          std::make_shared<DeclaredTarget>(DeclaredTarget{opened->map.info(), opened->layouts});
      part.opened = std::move(*opened);
    } else if (opened.error().code != ENOENT) {
      part.error = opened.error().text();
    } else if (part.spec->create) {
      part.target = std::make_shared<DeclaredTarget>(*described_target(*part.spec));
    }
    if (part.target) {
      auto rows = co_await load(part.spec, part.target);
      if (rows) {
        part.rows = std::move(*rows);
      } else {
        std::ranges::move(rows.error(), std::back_inserter(faults));
      }
    }
    prepared->parts.push_back(std::move(part));
  }
  if (!faults.empty()) co_return std::unexpected(std::move(faults));
  co_return std::move(prepared);
}

asio::awaitable<DeclaredMaps::Rows> DeclaredMaps::load(std::shared_ptr<MapSpec> spec,
                                                       std::shared_ptr<DeclaredTarget> target) {
  auto layouts = choose_layouts(spec_file_, *spec, target->info, target->layouts);
  if (!layouts) co_return std::unexpected(std::move(layouts.error()));
  target->layouts = std::move(*layouts);
  auto work = [file = spec_file_, spec, target, stop = stop_.get_token()]() -> Rows {
    return load_declared_rows(file, *spec, *target, stop);
  };
  co_return co_await run_in_background(loader_, std::move(work));
}

// --- putting it in force

void DeclaredMaps::put_in_force(PreparedPointer prepared) {
  std::vector<std::unique_ptr<Entry>> entries;
  for (Prepared::Part& part : prepared->parts) {
    auto entry = std::make_unique<Entry>();
    if (Entry* same = find_same(*part.spec)) {
      entry->lock = std::move(same->lock);
      entry->map = std::move(same->map);
    }
    entry->spec = std::move(*part.spec);
    entries.push_back(std::move(entry));
  }
  // Whatever is let go of goes before anything new is opened.
  generation_ = std::make_shared<const bool>(true);
  entries_ = std::move(entries);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = *entries_[i];
    Prepared::Part& part = prepared->parts[i];
    if (entry.map && part.rows) {
      entry.map->declare(std::move(*part.rows), std::move(part.target->layouts), entry.spec.prune);
      entry.spec = without_entries(std::move(entry.spec));
    } else if (part.opened && part.rows) {
      use(entry, std::move(*part.opened), std::move(*part.rows), std::move(part.target->layouts));
    } else if (part.rows && entry.spec.create) {
      auto created = create_declared_map(entry.spec);
      if (created)
        use(entry, std::move(*created), std::move(*part.rows), std::move(part.target->layouts));
      else
        fail(entry, created.error().text());
    } else if (!part.error.empty()) {
      fail(entry, std::move(part.error));
    } else {
      open_now(entry);
    }
  }
  retry_later();
}

void DeclaredMaps::use(Entry& entry, OpenedMap opened, DeclaredRows rows,
                       schema::MapLayouts layouts) {
  const std::uint32_t id = opened.map.info().id;
  if (!entry.lock) {
    auto lock = maps::MapLock::acquire(opened.map);
    if (!lock) return fail_to_lock(entry, id, lock.error());
    entry.lock = std::move(*lock);
  }
  auto map = DeclaredMap::create(environment_, std::move(opened));
  if (!map) {
    entry.lock.reset();
    entry.refused_id = id;
    return fail(entry, map.error().text());
  }
  entry.map = std::move(*map);
  entry.error.clear();
  entry.faults.clear();
  environment_.log.info("map {}: {} entries are declared for {}", entry.spec.name, rows.size(),
                        entry.spec.pin);
  entry.map->declare(std::move(rows), std::move(layouts), entry.spec.prune);
  entry.spec = without_entries(std::move(entry.spec));
}

void DeclaredMaps::fail(Entry& entry, std::string error) {
  if (error != entry.error)
    environment_.log.error("map {} cannot be kept: {}", entry.spec.name, error);
  entry.error = std::move(error);
}

void DeclaredMaps::fail_to_lock(Entry& entry, std::uint32_t map_id, const maps::MapError& error) {
  const auto holder = std::ranges::find_if(
      entries_, [&](const auto& other) { return other->lock && other->lock->map_id() == map_id; });
  if (holder == entries_.end()) return fail(entry, error.text());
  const MapSpec& first = (*holder)->spec;
  fail(entry, "it is the same map (id " + std::to_string(map_id) + ") as that of " + first.name +
                  ", which is pinned at " + first.pin);
}

// --- maps that are not there

void DeclaredMaps::retry_later() {
  retry_timer_.expires_after(options_.retry_interval);
  retry_timer_.async_wait(
      [this, generation = std::weak_ptr(generation_)](const boost::system::error_code& error) {
        if (error || generation.expired()) return;
        retry();
        retry_later();
      });
}

void DeclaredMaps::retry() {
  for (const auto& entry : entries_) {
    if (!entry->map && !entry->locking && !entry->loading) open_now(*entry);
  }
}

void DeclaredMaps::open_now(Entry& entry) {
  auto opened = open_declared_map(entry.spec.pin);
  if (!opened && opened.error().code == ENOENT) {
    entry.refused_id = 0;
    if (!entry.spec.create) {
      entry.error.clear();
      entry.faults.clear();
      return;
    }
    opened = create_declared_map(entry.spec);
  }
  if (!opened) return fail(entry, opened.error().text());
  if (opened->map.info().id == entry.refused_id) return;
  entry.locking = true;
  asio::co_spawn(environment_.io, fill(generation_, entry, std::move(*opened)), asio::detached);
}

asio::awaitable<void> DeclaredMaps::fill(std::weak_ptr<const bool> generation, Entry& entry,
                                         OpenedMap found) {
  const auto opened = std::make_shared<OpenedMap>(std::move(found));
  const maps::MapInfo info = opened->map.info();
  // Not by the loop: to find out who writes the map takes a look at every process.
  auto acquire = [opened] { return maps::MapLock::acquire(opened->map); };
  auto lock = co_await run_in_background(loader_, std::move(acquire));
  if (generation.expired()) co_return;
  entry.locking = false;
  if (!lock) co_return fail_to_lock(entry, info.id, lock.error());
  entry.lock = std::move(*lock);
  entry.loading = true;
  const auto spec = std::make_shared<MapSpec>(entry.spec);
  const auto target = std::make_shared<DeclaredTarget>(DeclaredTarget{info, opened->layouts});
  auto rows = co_await load(spec, target);
  if (generation.expired()) co_return;
  entry.loading = false;
  if (rows) co_return use(entry, std::move(*opened), std::move(*rows), std::move(target->layouts));
  // Not tried again with the same map: a reload brings other entries.
  entry.lock.reset();
  entry.refused_id = info.id;
  entry.faults = std::move(rows.error());
  fail(entry, entry.faults.empty() ? "its entries are refused" : entry.faults.front().to_string());
}

asio::awaitable<void> DeclaredMaps::settled() {
  asio::steady_timer timer(environment_.io);
  const auto is_settled = [](const auto& entry) {
    return entry->state() != DeclaredMapState::kSyncing;
  };
  while (!std::ranges::all_of(entries_, is_settled)) {
    timer.expires_after(kSettleInterval);
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

}  // namespace mapgate::engine
