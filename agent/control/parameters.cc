// SPDX-License-Identifier: Apache-2.0
#include "agent/control/parameters.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "agent/control/http_server.h"

namespace mapgate::control {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kDefaultLimit = 1000;
constexpr std::size_t kMaxLimit = 10'000;
constexpr milliseconds kDefaultTimeout = std::chrono::seconds(30);
constexpr milliseconds kMaxTimeout = std::chrono::seconds(600);

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<std::string> Parameters::text(const std::string& name) {
  const auto entry = query_.find(name);
  if (entry == query_.end()) return std::nullopt;
  ++used_;
  return entry->second;
}

std::optional<std::uint64_t> Parameters::number(const std::string& name, std::uint64_t min,
                                                std::uint64_t max) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto number = parse_number<std::uint64_t>(*value);
  if (number && *number >= min && *number <= max) return number;
  fail(name + " must be a number from " + std::to_string(min) + " to " + std::to_string(max));
  return std::nullopt;
}

milliseconds Parameters::timeout() {
  const auto value = text("timeout");
  if (!value) return kDefaultTimeout;
  const auto seconds = parse_number<double>(*value);
  const double limit = std::chrono::duration<double>(kMaxTimeout).count();
  if (seconds && *seconds >= 0 && *seconds <= limit) {
    return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(*seconds));
  }
  fail("timeout must be a number of seconds from 0 to " +
       std::to_string(kMaxTimeout.count() / 1000));
  return kDefaultTimeout;
}

std::size_t Parameters::limit() {
  return number("limit", 1, kMaxLimit).value_or(kDefaultLimit);
}

std::size_t Parameters::from() {
  return number("from", 0, UINT32_MAX).value_or(0);
}

std::optional<std::string> Parameters::state() {
  auto state = text("state");
  if (state && *state != "pending" && *state != "done" && *state != "error")
    fail("state must be pending, done or error");
  return state;
}

void Parameters::fail(std::string fault) {
  if (!fault_) fault_ = std::move(fault);
}

std::optional<HttpResponse> Parameters::fault() const {
  if (fault_) return problem(400, *fault_);
  if (used_ != query_.size())
    return problem(400, "there is a parameter that this path does not have");
  return std::nullopt;
}

}  // namespace mapgate::control
