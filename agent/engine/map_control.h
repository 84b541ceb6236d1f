// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>

#include <boost/asio/awaitable.hpp>

#include "agent/policy/spec.h"

namespace mapgate::engine {

// What can change the kernel's maps as a whole. Errors are one line for people.
class MapControl {
 public:
  virtual ~MapControl() = default;

  // The maps get these sizes and keep what they hold; nobody's verdict changes meanwhile. An error:
  // they hold more than that, say, and nothing has changed.
  [[nodiscard]] virtual boost::asio::awaitable<std::expected<void, std::string>> resize(
      policy::MapSizes sizes) = 0;

  // True at a start: maps have a new layout, and nobody reads them before contents_complete().
  [[nodiscard]] virtual bool awaits_contents() const = 0;
  // Every row that they should hold has been written, or has failed.
  [[nodiscard]] virtual std::expected<void, std::string> contents_complete() = 0;
};

}  // namespace mapgate::engine
