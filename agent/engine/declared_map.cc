// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/declared_map.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <bpf/bpf.h>
#include <mapgate/maps/map_error.h>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace mapgate::engine {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

// Rows between two looks at the loop's other work: about a millisecond's.
constexpr std::size_t kSlice = 4096;

reconciler::TimePoint now() {
  return std::chrono::steady_clock::now();
}

// How the first map that a map of maps holds is made.
std::expected<std::optional<InnerTarget>, maps::MapError> find_inner(const maps::Map& map,
                                                                     const std::string& pin) {
  if (!maps::is_map_of_maps(map.info().type)) return std::nullopt;
  const std::size_t key_size = map.info().key_size;
  std::vector<std::byte> key(key_size);
  std::vector<std::byte> next(key_size);
  const void* previous = nullptr;
  while (bpf_map_get_next_key(map.fd(), previous, next.data()) == 0) {
    std::swap(key, next);
    previous = key.data();
    std::uint32_t id = 0;
    if (bpf_map_lookup_elem(map.fd(), key.data(), &id) != 0) continue;
    const auto inner = maps::Map::open_id(id);
    if (!inner) continue;
    auto layouts = schema::layouts_of_map(inner->fd());
    if (!layouts)
      return std::unexpected(
          maps::MapError{"read the types of an inner map of", pin, EIO, layouts.error()});
    maps::MapInfo info = inner->info();
    info.id = 0;
    return InnerTarget{std::move(info), std::move(*layouts)};
  }
  return std::nullopt;
}

std::expected<OpenedMap, maps::MapError> with_layouts(maps::Map map, const std::string& pin) {
  auto layouts = schema::layouts_of_map(map.fd());
  if (!layouts)
    return std::unexpected(maps::MapError{"read the types of", pin, EIO, layouts.error()});
  auto inner = find_inner(map, pin);
  if (!inner) return std::unexpected(std::move(inner.error()));
  return OpenedMap{std::move(map), std::move(*layouts), std::move(*inner)};
}

}  // namespace

std::expected<OpenedMap, maps::MapError> open_declared_map(const std::string& pin) {
  auto map = maps::Map::open_pin(pin);
  if (!map) return std::unexpected(std::move(map.error()));
  // Before anything is read for it: the elements of some types have no bytes, or are no elements.
  std::string reason;
  if (!maps::is_map_of_maps(map->info().type))
    reason = maps::MapOperations::unsuitable(map->info());
  if (!reason.empty())
    return std::unexpected(maps::MapError{"use map", pin, EOPNOTSUPP, std::move(reason)});
  return with_layouts(std::move(*map), pin);
}

std::expected<void, maps::MapError> make_pin_folder(const std::string& pin) {
  const fs::path folder = fs::path(pin).parent_path();
  if (!maps::is_bpf_filesystem(folder))
    return std::unexpected(
        maps::MapError{"make the folder of", pin, EINVAL, "it is not on a BPF filesystem"});
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return {};
  return std::unexpected(maps::MapError{"make the folder of", pin, error.value(), error.message()});
}

std::expected<OpenedMap, maps::MapError> create_declared_map(const policy::MapSpec& spec) {
  const policy::MapCreation& creation = *spec.create;
  constexpr std::size_t kMaxKernelName = 15;
  std::string name = spec.name.substr(0, kMaxKernelName);
  for (char& c : name) {
    if (c == '-' || c == '@' || c == ':') c = '_';  // the kernel takes no others
  }
  std::optional<maps::Map> pattern;
  if (spec.inner) {
    auto made = maps::Map::create(described_inner(spec).info);
    if (!made) return std::unexpected(std::move(made.error()));
    pattern = std::move(*made);
  }
  auto map = maps::Map::create({.type = creation.type,
                                .key_size = creation.key_size,
                                .value_size = creation.value_size,
                                .max_entries = creation.max_entries,
                                .flags = creation.flags,
                                .name = std::move(name)},
                               pattern ? &*pattern : nullptr);
  if (!map) return std::unexpected(std::move(map.error()));
  if (auto made = make_pin_folder(spec.pin); !made) return std::unexpected(std::move(made.error()));
  if (auto pinned = map->pin(spec.pin); !pinned) return std::unexpected(std::move(pinned.error()));
  return open_declared_map(spec.pin);
}

DeclaredMap::DeclaredMap(const Environment& environment, Target target, schema::MapLayouts layouts,
                         std::optional<InnerTarget> inner)
    : environment_(environment),
      target_(std::move(target)),
      own_layouts_(std::move(layouts)),
      inner_(std::move(inner)),
      declared_target_(own_target()),
      table_(environment.new_epoch()),
      source_(table_.add_source("entries")) {
  follow(false);
}

std::expected<std::unique_ptr<DeclaredMap>, maps::MapError> DeclaredMap::create(
    const Environment& environment, OpenedMap opened, const std::optional<InnerTarget>& inner) {
  auto target = make_target(environment, std::move(opened.map), inner);
  if (!target) return std::unexpected(std::move(target.error()));
  return std::unique_ptr<DeclaredMap>(
      new DeclaredMap(environment, std::move(*target), std::move(opened.layouts), inner));
}

std::expected<DeclaredMap::Target, maps::MapError> DeclaredMap::make_target(
    const Environment& environment, maps::Map map, const std::optional<InnerTarget>& inner) {
  auto handle = maps::Map::from_fd(map.fd());
  if (!handle) return std::unexpected(std::move(handle.error()));
  std::vector<maps::Map> maps;
  maps.push_back(std::move(map));
  maps::MapOperations::Options options{.now = [] { return now(); }};
  if (inner) options.inner_maps.emplace(0, inner->info);
  auto operations =
      maps::MapOperations::create(std::move(maps), environment.calls, std::move(options));
  if (!operations) return std::unexpected(std::move(operations.error()));
  return Target{std::move(*operations), std::move(*handle)};
}

bool DeclaredMap::is_like(const OpenedMap& opened) const {
  const maps::MapInfo& other = opened.map.info();
  return other.type == info().type && other.key_size == info().key_size &&
         other.value_size == info().value_size && opened.layouts == own_layouts_ &&
         (!inner_ || !opened.inner || maps::are_made_alike(inner_->info, opened.inner->info));
}

std::expected<void, maps::MapError> DeclaredMap::move_to(OpenedMap opened) {
  auto target = make_target(environment_, std::move(opened.map), inner_);
  if (!target) return std::unexpected(std::move(target.error()));
  loop_.reset();
  target_ = std::move(*target);
  follow(prune_);
  if (!committing_) start();
  return {};
}

std::expected<void, maps::MapError> DeclaredMap::pin_again(const std::string& path) {
  return target_.handle.pin(path);
}

void DeclaredMap::follow(bool prune) {
  prune_ = prune;
  loop_.reset();
  reconciler::Options options = environment_.reconciler;
  options.start_with_resync = true;
  options.remove_unknown = prune;
  loop_ = std::make_unique<ReconcileLoop>(environment_.io, table_, target_.operations, options);
}

void DeclaredMap::declare(DeclaredRows rows, DeclaredTarget target, bool prune) {
  declared_target_ = std::move(target);
  next_rows_ = std::move(rows);
  if (prune != prune_) follow(prune);
  if (committing_) return;
  committing_ = true;
  asio::co_spawn(environment_.io, commit_rows(), asio::detached);
}

asio::awaitable<void> DeclaredMap::commit_rows() {
  const auto alive = std::weak_ptr(alive_);
  while (next_rows_) {
    const DeclaredRows rows = std::move(*next_rows_);
    next_rows_.reset();
    if (co_await write_all(rows)) {
      if (alive.expired()) co_return;
      co_await erase_others(rows);
    }
    if (alive.expired()) co_return;
  }
  table_.source_complete(source_);
  start();
  committing_ = false;
}

void DeclaredMap::start() {
  request_comparison();
  loop_->start();
}

asio::awaitable<bool> DeclaredMap::write_all(const DeclaredRows& rows) {
  const auto alive = std::weak_ptr(alive_);
  for (std::size_t row = 0; row < rows.size();) {
    auto transaction = table_.begin();
    const std::size_t end = std::min(rows.size(), row + kSlice);
    transaction.reserve(end - row);
    for (; row < end; ++row)
      transaction.put(maps::RowKey(0, rows.key(row)), maps::RowValue(rows.value(row)));
    std::move(transaction).commit(now());
    co_await asio::post(environment_.io, asio::use_awaitable);
    if (alive.expired() || next_rows_) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> DeclaredMap::erase_others(const DeclaredRows& rows) {
  const auto alive = std::weak_ptr(alive_);
  // Nothing but these rows: the usual start.
  if (table_.size() == rows.size()) co_return true;
  std::optional<std::size_t> next = 0;
  while (next) {
    auto transaction = table_.begin();
    next = loop_->reconciler().list(
        *next, kSlice,
        [&](const maps::RowKey& key, const std::optional<maps::RowValue>& value,
            reconciler::Revision, const reconciler::RowStatus&) {
          if (value && !rows.contains(key.bytes())) transaction.erase(key);
        });
    std::move(transaction).commit(now());
    co_await asio::post(environment_.io, asio::use_awaitable);
    if (alive.expired() || next_rows_) co_return false;
  }
  co_return true;
}

void DeclaredMap::request_comparison() {
  const reconciler::ResyncStatus resync = loop_->reconciler().progress().resync;
  // One that is under way has passed part of the map, and counts for nothing.
  compared_before_ = resync.completed + resync.failed + (resync.running ? 1 : 0);
  loop_->reconciler().request_resync();
}

std::size_t DeclaredMap::failing() const {
  return loop_->reconciler().progress().errors;
}

bool DeclaredMap::settled() const {
  if (committing_ || next_rows_) return false;
  const reconciler::Progress progress = loop_->reconciler().progress();
  return progress.pending == 0 &&
         progress.resync.completed + progress.resync.failed > compared_before_;
}

}  // namespace mapgate::engine
