// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "agent/control/http.h"

namespace mapgate::control {

// Reads a request's parameters, which outlive it; the first fault is kept, and a parameter that
// nobody asked for is one.
class Parameters {
 public:
  explicit Parameters(const QueryParameters& query) : query_(query) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name);
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& name, std::uint64_t min,
                                                    std::uint64_t max);
  // How long to wait at most: "timeout", in seconds.
  [[nodiscard]] std::chrono::milliseconds timeout();
  // Of a page: "limit" entries, beginning at "from".
  [[nodiscard]] std::size_t limit();
  [[nodiscard]] std::size_t from();
  // Rows in one state only: "state".
  [[nodiscard]] std::optional<std::string> state();

  void fail(std::string fault);
  // Once everything has been asked for.
  [[nodiscard]] std::optional<HttpResponse> fault() const;

 private:
  const QueryParameters& query_;
  std::size_t used_ = 0;
  std::optional<std::string> fault_;
};

}  // namespace mapgate::control
