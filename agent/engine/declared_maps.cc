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
#include "agent/engine/paths.h"

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using policy::MapSpec;
using policy::SpecError;

// How often settled() looks.
constexpr auto kSettleInterval = std::chrono::milliseconds(2);
// Between attempts to make a map lie up to two to this power rounds.
constexpr std::uint32_t kMaxBackoff = 6;

// What the path leads to, as far as it exists.
fs::path as_it_is(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path, error);
  return error ? path.lexically_normal() : result;
}

// The entries go once they are in force: they may be most of the memory.
std::shared_ptr<const MapSpec> without_entries(const MapSpec& spec) {
  auto result = std::make_shared<MapSpec>(spec);
  result->entries = {};
  return result;
}

// What the pin leads to, or is made to lead to.
std::expected<DeclaredMaps::Prepared::Part, maps::MapError> open_or_make(
    DeclaredMaps::Prepared::Part part) {
  if (part.opened) return part;
  auto found = open_declared_map(part.spec->pin);
  const bool make = !found && found.error().code == ENOENT && part.spec->create;
  if (make) found = create_declared_map(*part.spec);
  if (!found) return std::unexpected(std::move(found.error()));
  part.opened = std::make_shared<OpenedMap>(std::move(*found));
  // Rows may have been read for a map that is to be made, by what the spec says of it.
  const bool fits = make && part.target && part.target->info.id == 0;
  if (!fits) part.rows.reset();
  return part;
}

bool would_make(const policy::MapCreation& creation, const maps::MapInfo& info) {
  return creation.type == info.type && creation.key_size == info.key_size &&
         creation.value_size == info.value_size;
}

std::string describe_failing(const DeclaredMaps::Entry& entry) {
  std::string text = "map " + entry.spec->name + ": " + std::to_string(entry.map->failing()) +
                     " entries are not in the kernel as declared";
  for (const auto& [key, status] : entry.map->loop().reconciler().first_errors(1)) {
    if (status.error) text += ", the first because: " + status.error->text;
  }
  return text;
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
    case DeclaredMapState::kFailing:
      return "failing";
    case DeclaredMapState::kInSync:
      return "in sync";
  }
  return "unknown";
}

DeclaredMapState DeclaredMaps::Entry::state() const {
  if (!error.empty()) return DeclaredMapState::kFailed;
  if (opening) return DeclaredMapState::kSyncing;
  if (!map || !pinned) return DeclaredMapState::kWaiting;
  if (!map->settled()) return DeclaredMapState::kSyncing;
  return map->failing() > 0 ? DeclaredMapState::kFailing : DeclaredMapState::kInSync;
}

DeclaredMaps::DeclaredMaps(const DeclaredMap::Environment& environment, Options options)
    : environment_(environment),
      options_(std::move(options)),
      spec_file_(options_.spec_file.native()),
      timer_(environment.io) {}

DeclaredMaps::~DeclaredMaps() {
  stop_.request_stop();
  openers_.join();
  loader_.join();
}

const DeclaredMaps::Entry* DeclaredMaps::find(std::string_view name) const {
  const auto found =
      std::ranges::find_if(entries_, [&](const auto& entry) { return entry->spec->name == name; });
  return found == entries_.end() ? nullptr : found->get();
}

DeclaredMaps::Entry* DeclaredMaps::find_kept(const MapSpec& spec, std::uint32_t id) {
  const auto found = std::ranges::find_if(entries_, [&](const auto& entry) {
    if (entry->spec->name != spec.name || entry->spec->pin != spec.pin || !entry->map) return false;
    const maps::MapInfo& info = entry->map->info();
    if (id != 0) return id == info.id;
    return !spec.create || would_make(*spec.create, info);
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
    Prepared::Part part{.spec = std::make_shared<const MapSpec>(std::move(spec))};
    const auto pinned = maps::Map::open_pin(part.spec->pin);
    if (!pinned && pinned.error().code != ENOENT) {
      part.error = pinned.error().text();
    } else if (const Entry* kept = find_kept(*part.spec, pinned ? pinned->info().id : 0)) {
      part.target = std::make_shared<DeclaredTarget>(kept->map->own_target());
    } else if (pinned) {
      auto open = [pin = part.spec->pin] { return open_declared_map(pin); };
      auto opened = co_await run_in_background(loader_, std::move(open));
      if (opened) {
        part.target = std::make_shared<DeclaredTarget>(opened->target());
        part.opened = std::make_shared<OpenedMap>(std::move(*opened));
      } else {
        part.error = opened.error().text();
      }
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

asio::awaitable<DeclaredMaps::Rows> DeclaredMaps::load(std::shared_ptr<const MapSpec> spec,
                                                       std::shared_ptr<DeclaredTarget> target) {
  if (auto chosen = choose_layouts(spec_file_, *spec, *target); !chosen)
    co_return std::unexpected(std::move(chosen.error()));
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
    // Without rows it is let go of, and filled from the start once that is possible.
    const std::uint32_t id = part.opened ? part.opened->map.info().id : 0;
    if (Entry* kept = part.rows ? find_kept(*part.spec, id) : nullptr) {
      entry->lock = std::move(kept->lock);
      entry->map = std::move(kept->map);
      entry->pinned = kept->pinned;
      entry->reported_failing = kept->reported_failing;
    }
    entry->spec = part.spec;
    entries.push_back(std::move(entry));
  }
  // Whatever is let go of goes before anything new is opened.
  generation_ = std::make_shared<const bool>(true);
  entries_ = std::move(entries);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = *entries_[i];
    Prepared::Part& part = prepared->parts[i];
    if (entry.map && part.rows) {
      entry.map->declare(std::move(*part.rows), std::move(*part.target), entry.spec->prune);
      entry.spec = without_entries(*entry.spec);
      look(entry);
    } else if (part.rows) {
      open(entry, std::move(part));
    } else if (!part.error.empty()) {
      fail(entry, std::move(part.error));
    } else {
      look(entry);
    }
  }
  look_again_later();
}

void DeclaredMaps::fail(Entry& entry, std::string error) {
  if (error != entry.error)
    environment_.log.error("map {} cannot be kept: {}", entry.spec->name, error);
  entry.error = std::move(error);
}

void DeclaredMaps::fail_to_make(Entry& entry, std::string error) {
  // Each attempt may take seconds of the kernel's time.
  entry.rounds_to_wait = 1U << std::min(entry.failures++, kMaxBackoff);
  fail(entry, std::move(error));
}

void DeclaredMaps::fail_to_lock(Entry& entry, std::uint32_t map_id, const maps::MapError& error) {
  const auto holder = std::ranges::find_if(
      entries_, [&](const auto& other) { return other->lock && other->lock->map_id() == map_id; });
  if (holder == entries_.end()) return fail(entry, error.text());
  const MapSpec& first = *(*holder)->spec;
  fail(entry, "it is the same map (id " + std::to_string(map_id) + ") as that of " + first.name +
                  ", which is pinned at " + first.pin);
}

// --- what the pins lead to

void DeclaredMaps::look_again_later() {
  timer_.expires_after(options_.interval);
  timer_.async_wait(
      [this, generation = std::weak_ptr(generation_)](const boost::system::error_code& error) {
        if (error || generation.expired()) return;
        for (const auto& entry : entries_) {
          if (entry->opening) continue;
          look(*entry);
          report_failing(*entry);
        }
        look_again_later();
      });
}

void DeclaredMaps::look(Entry& entry) {
  const auto found = maps::Map::open_pin(entry.spec->pin);
  if (!found && found.error().code == ENOENT) return look_at_missing_pin(entry);
  if (!found) {
    entry.pinned = false;
    return fail(entry, found.error().text());
  }
  // What failed before was to open it, not to make it.
  entry.failures = entry.rounds_to_wait = 0;
  const std::uint32_t id = found->info().id;
  if (entry.map && id == entry.map->info().id) {
    if (!entry.pinned) environment_.log.info("map {}: it is pinned again", entry.spec->name);
    entry.pinned = true;
    entry.error.clear();
    entry.refused_id = 0;
    return;
  }
  if (id == entry.refused_id) return;
  if (entry.pinned)
    environment_.log.warn("map {}: another map has taken its place at {}", entry.spec->name,
                          entry.spec->pin);
  entry.pinned = false;
  open(entry, {.spec = entry.spec});
}

void DeclaredMaps::look_at_missing_pin(Entry& entry) {
  entry.refused_id = 0;
  if (entry.pinned)
    environment_.log.warn("map {}: its pin {} was removed", entry.spec->name, entry.spec->pin);
  entry.pinned = false;
  if (!entry.spec->create) {
    entry.error.clear();
    entry.faults.clear();
    return;
  }
  if (entry.rounds_to_wait > 0) {
    --entry.rounds_to_wait;
    return;
  }
  if (!entry.map) return open(entry, {.spec = entry.spec});
  auto pinned = make_pin_folder(entry.spec->pin);
  if (pinned) pinned = entry.map->pin_again(entry.spec->pin);
  if (!pinned) return fail(entry, pinned.error().text());
  look(entry);
}

void DeclaredMaps::report_failing(Entry& entry) {
  const DeclaredMapState state = entry.state();
  if (state == DeclaredMapState::kFailing && !std::exchange(entry.reported_failing, true))
    environment_.log.error("{}", describe_failing(entry));
  if (state == DeclaredMapState::kInSync && std::exchange(entry.reported_failing, false))
    environment_.log.info("map {}: all of its entries are in the kernel", entry.spec->name);
}

// --- opening, making and filling

void DeclaredMaps::open(Entry& entry, Prepared::Part part) {
  entry.opening = true;
  asio::co_spawn(environment_.io, open_part(entry, std::move(part), generation_), asio::detached);
}

asio::awaitable<void> DeclaredMaps::open_part(Entry& entry, Prepared::Part part,
                                              std::weak_ptr<const bool> generation) {
  // Not by the loop: to make a large map takes seconds, to find out who writes it takes a look at
  // every process.
  auto find = [part = std::move(part)]() mutable { return open_or_make(std::move(part)); };
  auto found = co_await run_in_background(openers_, std::move(find));
  if (generation.expired()) co_return;
  if (!found) {
    entry.opening = false;
    co_return fail_to_make(entry, found.error().text());
  }
  part = std::move(*found);

  // A lock that the generation before still got is gone once its thread and the loop were here.
  co_await run_in_background(loader_, [] { return true; });
  if (generation.expired()) co_return;
  auto acquire = [opened = part.opened] { return maps::MapLock::acquire(opened->map); };
  auto lock = co_await run_in_background(loader_, std::move(acquire));
  if (generation.expired()) co_return;
  const maps::MapInfo info = part.opened->map.info();
  entry.opening = false;
  if (!lock) co_return fail_to_lock(entry, info.id, lock.error());
  if (entry.map) co_return move(entry, std::move(*part.opened), std::move(*lock));

  entry.error.clear();
  entry.opening = true;
  if (!part.rows) {
    part.target = std::make_shared<DeclaredTarget>(part.opened->target());
    auto rows = co_await load(part.spec, part.target);
    if (generation.expired()) co_return;
    if (!rows) {
      entry.faults = std::move(rows.error());
    } else {
      part.rows = std::move(*rows);
    }
  }
  entry.opening = false;
  fill(entry, std::move(part), std::move(*lock));
}

void DeclaredMaps::fill(Entry& entry, Prepared::Part part, maps::MapLock lock) {
  // What is refused is not tried again with the same map: a reload brings other entries.
  entry.refused_id = lock.map_id();
  if (!part.rows)
    return fail(
        entry, entry.faults.empty() ? "its entries are refused" : entry.faults.front().to_string());
  auto map = DeclaredMap::create(environment_, std::move(*part.opened), part.target->inner);
  if (!map) return fail(entry, map.error().text());
  entry.map = std::move(*map);
  entry.lock = std::move(lock);
  entry.pinned = true;
  entry.refused_id = 0;
  entry.failures = 0;
  entry.faults.clear();
  environment_.log.info("map {}: {} entries are declared for {}", entry.spec->name,
                        part.rows->size(), entry.spec->pin);
  entry.map->declare(std::move(*part.rows), std::move(*part.target), entry.spec->prune);
  entry.spec = without_entries(*entry.spec);
}

void DeclaredMaps::move(Entry& entry, OpenedMap opened, maps::MapLock lock) {
  if (!entry.map->is_like(opened)) {
    entry.refused_id = lock.map_id();
    return fail(entry, "another kind of map is pinned there now: a reload reads its entries anew");
  }
  if (auto moved = entry.map->move_to(std::move(opened)); !moved)
    return fail(entry, moved.error().text());
  entry.lock = std::move(lock);
  entry.pinned = true;
  entry.error.clear();
  environment_.log.info("map {}: the map that is pinned there now is kept", entry.spec->name);
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

std::vector<std::string> DeclaredMaps::problems() const {
  std::vector<std::string> result;
  for (const auto& entry : entries_) {
    if (!entry->error.empty()) result.push_back("map " + entry->spec->name + ": " + entry->error);
    if (entry->state() == DeclaredMapState::kFailing) result.push_back(describe_failing(*entry));
  }
  return result;
}

}  // namespace mapgate::engine
