// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/spec_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_set>

namespace mapgate::policy {
namespace {

constexpr std::size_t kMaxQuoted = 80;

std::string escape_pointer(std::string_view token) {
  std::string text;
  for (char c : token) {
    if (c == '~') {
      text += "~0";
    } else if (c == '/') {
      text += "~1";
    } else {
      text += c;
    }
  }
  return text;
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + "s" : std::to_string(count) + "ms";
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  std::uint32_t number = 0;  // 32 bits of hours fit 64 bits of milliseconds
  const auto [unit, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits = {
      {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}}};
  for (const auto& [name, milliseconds] : kUnits) {
    if (name == std::string_view(unit, text.data() + text.size())) {
      return std::chrono::milliseconds(number * milliseconds);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (char c : text.substr(0, kMaxQuoted)) {
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 0xf]};
    }
  }
  return result + (text.size() > kMaxQuoted ? "...\"" : "\"");
}

std::string list_names(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string Place::pointer() const {
  if (parent_ == nullptr) return std::string(key_);
  const bool in_list = parent_->node().kind == DocumentNode::Kind::kList;
  return parent_->pointer() + '/' + (in_list ? std::to_string(index_) : escape_pointer(key_));
}

void SpecErrors::add(const Place& place, Location location, std::string reason) {
  if (errors_.size() == kMaxSpecErrors) {
    ++left_out_;
    return;
  }
  errors_.push_back({.file = std::string(file_),
                     .line = location.line + first_line_ - 1,
                     .column = location.column,
                     .pointer = place.pointer(),
                     .reason = std::move(reason)});
}

std::vector<SpecError> SpecErrors::finish() && {
  std::ranges::stable_sort(
      errors_, {}, [](const SpecError& error) { return std::pair(error.line, error.column); });
  if (left_out_ > 0) {
    SpecError last = errors_.back();
    last.pointer.clear();
    last.reason = "and " + std::to_string(left_out_) + " more faults";
    errors_.push_back(std::move(last));
  }
  return std::move(errors_);
}

Fields::Fields(SpecErrors& errors, const Place& place)
    : errors_(errors),
      place_(place),
      is_mapping_(place.node().kind == DocumentNode::Kind::kMapping) {
  if (!is_mapping_) errors_.add(place, "expected a mapping");
}

std::optional<Place> Fields::optional(std::string_view name) {
  known_.push_back(name);
  if (!is_mapping_) return std::nullopt;
  const DocumentNode& node = place_.node();
  const auto found = std::ranges::find(node.keys, name, &DocumentKey::text);
  if (found == node.keys.end()) return std::nullopt;
  const auto index = static_cast<std::size_t>(found - node.keys.begin());
  return Place(place_, node.keys[index].text, node.items[index]);
}

std::optional<Place> Fields::required(std::string_view name) {
  auto place = optional(name);
  if (!place && is_mapping_) errors_.add(place_, "the field " + std::string(name) + " is missing");
  return place;
}

void Fields::finish() {
  if (!is_mapping_) return;
  const DocumentNode& node = place_.node();
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const auto& [key, location] = node.keys[i];
    const Place place(place_, key, node.items[i]);
    if (!seen.insert(key).second)
      errors_.add(place, location, "the field " + in_quotes(key) + " is given twice");
    if (std::ranges::find(known_, key) == known_.end()) {
      errors_.add(place, location,
                  "unknown field " + in_quotes(key) + "; known here: " + list_names(known_));
    }
  }
}

std::optional<std::string_view> read_string(SpecErrors& errors, const Place& place) {
  if (place.node().kind == DocumentNode::Kind::kString) return place.node().text;
  errors.add(place, "expected a string");
  return std::nullopt;
}

std::optional<bool> read_boolean(SpecErrors& errors, const Place& place) {
  if (place.node().kind == DocumentNode::Kind::kBoolean) return place.node().boolean;
  errors.add(place, "expected true or false");
  return std::nullopt;
}

std::optional<std::int64_t> read_integer(SpecErrors& errors, const Place& place, std::int64_t least,
                                         std::int64_t greatest) {
  const DocumentNode& node = place.node();
  if (node.kind == DocumentNode::Kind::kInteger && node.integer >= least &&
      node.integer <= greatest) {
    return node.integer;
  }
  errors.add(place,
             "expected an integer in " + std::to_string(least) + ".." + std::to_string(greatest));
  return std::nullopt;
}

std::optional<std::chrono::milliseconds> read_duration(SpecErrors& errors, const Place& place,
                                                       std::chrono::milliseconds least,
                                                       std::chrono::milliseconds greatest) {
  const DocumentNode& node = place.node();
  std::optional<std::chrono::milliseconds> duration;
  if (node.kind == DocumentNode::Kind::kInteger && node.integer >= 0 &&
      node.integer <= UINT32_MAX) {
    duration = std::chrono::seconds(node.integer);
  } else if (node.kind == DocumentNode::Kind::kString) {
    duration = parse_duration(node.text);
  }
  if (duration && *duration >= least && *duration <= greatest) return duration;
  errors.add(
      place,
      "expected seconds, or a number with a unit as in \"250ms\", \"60s\", \"10m\", \"24h\", in " +
          duration_text(least) + ".." + duration_text(greatest));
  return std::nullopt;
}

}  // namespace mapgate::policy
