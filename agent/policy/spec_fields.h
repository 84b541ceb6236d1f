// SPDX-License-Identifier: Apache-2.0
// Reading a document's values with all faults collected, each with its place. For agent/policy and
// agent/schema.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/policy/document.h"
#include "agent/policy/spec.h"

namespace mapgate::policy {

// A text from outside, fit for an error message: quoted, printable, not long.
[[nodiscard]] std::string in_quotes(std::string_view text);

// A value and how one gets to it. Points to its parent, which must outlive it.
class Place {
 public:
  explicit Place(const DocumentNode& root) : node_(&root) {}
  // A part of a document that is read apart from it. `pointer` leads to it, and must outlive it.
  Place(std::string_view pointer, const DocumentNode& part) : key_(pointer), node_(&part) {}
  Place(const Place& parent, std::string_view key, const DocumentNode& node)
      : parent_(&parent), key_(key), node_(&node) {}
  Place(const Place& parent, std::size_t index, const DocumentNode& node)
      : parent_(&parent), index_(index), node_(&node) {}

  [[nodiscard]] const DocumentNode& node() const { return *node_; }
  [[nodiscard]] std::string pointer() const;  // RFC 6901

 private:
  const Place* parent_ = nullptr;
  std::string_view key_;
  std::size_t index_ = 0;
  const DocumentNode* node_;
};

// The faults found so far.
class SpecErrors {
 public:
  explicit SpecErrors(std::string_view file) : file_(file) {}

  void add(const Place& place, std::string reason) {
    add(place, place.node().location, std::move(reason));
  }
  void add(const Place& place, Location location, std::string reason);
  // The first line of what is read next is line `line` of the file.
  void set_first_line(unsigned line) { first_line_ = line; }
  [[nodiscard]] std::size_t count() const { return errors_.size() + left_out_; }
  [[nodiscard]] bool empty() const { return errors_.empty(); }
  // In the order of their places; the last one says how many were left out.
  [[nodiscard]] std::vector<SpecError> finish() &&;

 private:
  std::string_view file_;
  unsigned first_line_ = 1;
  std::vector<SpecError> errors_;
  std::size_t left_out_ = 0;
};

// The fields of a mapping. Ask for each field that may be there; then finish() reports the others
// and duplicates.
class Fields {
 public:
  // Anything but a mapping is a fault, and has no fields.
  Fields(SpecErrors& errors, const Place& place);

  [[nodiscard]] std::optional<Place> optional(std::string_view name);
  [[nodiscard]] std::optional<Place> required(std::string_view name);
  void finish();

 private:
  SpecErrors& errors_;
  const Place& place_;
  bool is_mapping_;
  std::vector<std::string_view> known_;
};

// Scalars. Empty after a fault, which is reported.
[[nodiscard]] std::optional<std::string_view> read_string(SpecErrors& errors, const Place& place);
[[nodiscard]] std::optional<bool> read_boolean(SpecErrors& errors, const Place& place);
[[nodiscard]] std::optional<std::int64_t> read_integer(SpecErrors& errors, const Place& place,
                                                       std::int64_t least, std::int64_t greatest);
// An integer number of seconds, or text of a number and a unit: "250ms", "60s", "10m", "24h".
[[nodiscard]] std::optional<std::chrono::milliseconds> read_duration(
    SpecErrors& errors, const Place& place, std::chrono::milliseconds least,
    std::chrono::milliseconds greatest);

template <typename Value>
using Choices = std::initializer_list<std::pair<std::string_view, Value>>;

[[nodiscard]] std::string list_names(const std::vector<std::string_view>& names);

// One of a few words.
template <typename Value>
[[nodiscard]] std::optional<Value> read_choice(SpecErrors& errors, const Place& place,
                                               Choices<Value> choices) {
  const auto text = read_string(errors, place);
  if (!text) return std::nullopt;
  std::vector<std::string_view> names;
  for (const auto& [name, value] : choices) {
    if (name == *text) return value;
    names.push_back(name);
  }
  errors.add(place, in_quotes(*text) + " is not one of " + list_names(names));
  return std::nullopt;
}

// Calls `read(item place)` for each item of a list. An empty list is a fault if it says so.
enum class EmptyList { kAllowed, kRefused };
template <typename Read>
void read_list(SpecErrors& errors, const Place& place, EmptyList empty, Read read) {
  const DocumentNode& node = place.node();
  if (node.kind != DocumentNode::Kind::kList) {
    errors.add(place, "expected a list");
    return;
  }
  if (node.items.empty() && empty == EmptyList::kRefused) {
    errors.add(place, "must not be empty; leave it out instead");
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) read(Place(place, i, node.items[i]));
}

}  // namespace mapgate::policy
