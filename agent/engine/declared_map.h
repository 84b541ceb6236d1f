// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_calls.h>
#include <mapgate/maps/map_operations.h>
#include <spdlog/logger.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "agent/engine/declared_rows.h"
#include "agent/engine/reconcile_loop.h"
#include "agent/engine/types.h"
#include "agent/policy/map_spec.h"
#include "agent/schema/btf_layout.h"

namespace mapgate::engine {

// A map that is there, and what it says of its content.
struct OpenedMap {
  maps::Map map;
  schema::MapLayouts layouts;
  std::optional<InnerTarget> inner;  // as one that it holds, if it is a map of maps and holds any

  [[nodiscard]] DeclaredTarget target() const { return {map.info(), layouts, inner}; }
};

// The one place where a map of somebody else's is opened. ENOENT: nothing is pinned there.
// EOPNOTSUPP: such a map cannot hold desired state.
[[nodiscard]] std::expected<OpenedMap, maps::MapError> open_declared_map(const std::string& pin);
// Makes the folders of a pin, on a BPF filesystem only: elsewhere they would be there for nothing.
[[nodiscard]] std::expected<void, maps::MapError> make_pin_folder(const std::string& pin);
// Makes it, and the folders of its pin, and opens it.
[[nodiscard]] std::expected<OpenedMap, maps::MapError> create_declared_map(
    const policy::MapSpec& spec);

// Keeps one map at what the spec declares, from the moment its rows are known: a table and a
// reconciler of its own, so that no map's trouble is another's. For the thread of `io`.
class DeclaredMap {
 public:
  struct Environment {
    boost::asio::io_context& io;
    maps::MapCalls& calls;
    spdlog::logger& log;
    reconciler::Options reconciler;
    std::function<reconciler::Epoch()> new_epoch;
  };

  // `inner` is how inner maps are made, if it is a map of maps. All of the environment outlives it.
  [[nodiscard]] static std::expected<std::unique_ptr<DeclaredMap>, maps::MapError> create(
      const Environment& environment, OpenedMap opened, const std::optional<InnerTarget>& inner);
  DeclaredMap(const DeclaredMap&) = delete;
  DeclaredMap& operator=(const DeclaredMap&) = delete;

  // Puts rows in force, in slices: those that are new or changed are written, those that it wrote
  // before and are not among them are deleted, and the whole map is compared. With `prune`, what
  // nobody declared is removed. The newest call wins. `target` is what the rows were read for; how
  // inner maps are made cannot change.
  void declare(DeclaredRows rows, DeclaredTarget target, bool prune);
  // Whether the kernel has what was declared last, apart from rows that fail.
  [[nodiscard]] bool settled() const;

  // Rows that are not in the kernel as declared, and are not about to be.
  [[nodiscard]] std::size_t failing() const;

  // Another map that has come in the place of this one, of the same type and layouts: from now on
  // that one is kept at what was declared. After an error the one before still is.
  [[nodiscard]] std::expected<void, maps::MapError> move_to(OpenedMap opened);
  [[nodiscard]] bool is_like(const OpenedMap& opened) const;
  // Pins the map at `path` again.
  [[nodiscard]] std::expected<void, maps::MapError> pin_again(const std::string& path);

  [[nodiscard]] const maps::MapInfo& info() const { return target_.handle.info(); }
  // What the map itself says, and what the spec makes of it.
  [[nodiscard]] DeclaredTarget own_target() const { return {info(), own_layouts_, inner_}; }
  [[nodiscard]] const DeclaredTarget& declared_target() const { return declared_target_; }
  [[nodiscard]] const Table& table() const { return table_; }
  [[nodiscard]] const ReconcileLoop& loop() const { return *loop_; }
  [[nodiscard]] maps::MapStatus status() const { return target_.operations.status().front(); }

 private:
  // A map as it is kept, and a handle of its own to pin it by.
  struct Target {
    maps::MapOperations operations;
    maps::Map handle;
  };
  [[nodiscard]] static std::expected<Target, maps::MapError> make_target(
      const Environment& environment, maps::Map map, const std::optional<InnerTarget>& inner);
  DeclaredMap(const Environment& environment, Target target, schema::MapLayouts layouts,
              std::optional<InnerTarget> inner);
  // Compares, and keeps what was declared from then on.
  void start();
  void follow(bool prune);
  [[nodiscard]] boost::asio::awaitable<void> commit_rows();
  // False: newer rows have come meanwhile.
  [[nodiscard]] boost::asio::awaitable<bool> write_all(const DeclaredRows& rows);
  [[nodiscard]] boost::asio::awaitable<bool> erase_others(const DeclaredRows& rows);
  void request_comparison();

  const Environment environment_;
  Target target_;
  const schema::MapLayouts own_layouts_;
  const std::optional<InnerTarget> inner_;
  DeclaredTarget declared_target_;
  Table table_;
  reconciler::SourceId source_;
  bool prune_ = false;
  std::unique_ptr<ReconcileLoop> loop_;
  std::optional<DeclaredRows> next_rows_;
  bool committing_ = false;
  // Comparisons that had ended, well or not, when the last one was asked for.
  std::uint64_t compared_before_ = 0;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
