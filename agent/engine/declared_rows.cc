// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/declared_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include <mapgate/maps/lpm.h>
#include <mapgate/maps/map_error.h>
#include <mapgate/maps/row.h>

#include "agent/engine/line_reader.h"
#include "agent/policy/json_line.h"
#include "agent/policy/spec_fields.h"
#include "agent/schema/codec.h"
#include "agent/schema/hint.h"

namespace mapgate::engine {
namespace {

using policy::DocumentNode;
using policy::Fields;
using policy::Location;
using policy::MapSpec;
using policy::Place;
using policy::SpecError;
using policy::SpecErrors;

constexpr std::size_t kMaxRows = std::size_t{1} << 26;
constexpr std::size_t kLinesBetweenStops = 1024;

std::string_view layout_path(std::string_view path) {
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

// Fills rows from entries, and finds their faults.
class RowReader {
 public:
  RowReader(DeclaredTarget& target, DeclaredRows& rows) : target_(target), rows_(rows) {}

  void read(const Place& entry, SpecErrors& errors) {
    const auto [key, value] = fields(entry, errors);
    if (key == nullptr || value == nullptr) return;
    const maps::MapInfo& info = target_.info;
    const std::span<std::byte> row = rows_.add();
    const std::span<std::byte> key_bytes = row.first(info.key_size);
    const Place key_place(entry, "key", *key);
    if (schema::encode(target_.layouts.key, key_place, errors, key_bytes))
      check_key(key_place, key_bytes, errors);
    static_cast<void>(schema::encode(target_.layouts.value, Place(entry, "value", *value), errors,
                                     row.subspan(info.key_size)));
  }

 private:
  using KeyAndValue = std::pair<const DocumentNode*, const DocumentNode*>;

  static KeyAndValue fields(const Place& entry, SpecErrors& errors) {
    const DocumentNode& node = entry.node();
    if (node.kind == DocumentNode::Kind::kMapping && node.keys.size() == 2 &&
        node.keys[0].text == "key" && node.keys[1].text == "value")
      return {&node.items[0], &node.items[1]};
    const std::size_t before = errors.count();
    Fields fields(errors, entry);
    const auto key = fields.required("key");
    const auto value = fields.required("value");
    fields.finish();
    if (errors.count() != before) return {};
    return {&key->node(), &value->node()};
  }

  void check_key(const Place& place, std::span<const std::byte> key, SpecErrors& errors) const {
    const maps::MapInfo& info = target_.info;
    std::uint32_t number = 0;
    std::memcpy(&number, key.data(), std::min(key.size(), sizeof number));
    if (info.type == BPF_MAP_TYPE_LPM_TRIE) {
      const std::size_t longest = 8 * (key.size() - sizeof number);
      if (number > longest)
        errors.add(place, "the prefix length is " + std::to_string(number) + "; the longest is " +
                              std::to_string(longest));
      else if (!maps::is_canonical_lpm_key(key))
        errors.add(place,
                   "bits are set behind the prefix length, which is " + std::to_string(number));
    } else if (info.type == BPF_MAP_TYPE_ARRAY && number >= info.max_entries) {
      errors.add(place, "the array ends at index " + std::to_string(info.max_entries - 1));
    }
  }

  DeclaredTarget& target_;
  DeclaredRows& rows_;
};

// A fault that is not about a part of a document.
void add(SpecErrors& errors, const std::string& pointer, Location location, std::string reason) {
  errors.add(Place(pointer, DocumentNode()), location, std::move(reason));
}

class Loader {
 public:
  Loader(const std::string& file, const MapSpec& spec, DeclaredTarget& target,
         const std::stop_token& stop)
      : file_(file),
        spec_(spec),
        stop_(stop),
        rows_(target.info.key_size, target.info.value_size),
        reader_(target, rows_),
        entries_pointer_(spec.pointer + "/entries"),
        spec_errors_(file),
        lines_file_(spec.entries_from ? spec.entries_from->native() : std::string()),
        line_errors_(lines_file_) {}

  std::expected<DeclaredRows, std::vector<SpecError>> load() {
    const Place list(entries_pointer_, spec_.entries);
    for (std::size_t i = 0; i < spec_.entries.items.size(); ++i)
      reader_.read(Place(list, i, spec_.entries.items[i]), spec_errors_);
    if (spec_.entries_from) read_lines();
    if (spec_errors_.empty() && line_errors_.empty()) refuse_repeated();
    if (spec_errors_.empty() && line_errors_.empty()) return std::move(rows_);
    auto errors = std::move(spec_errors_).finish();
    for (SpecError& error : std::move(line_errors_).finish()) errors.push_back(std::move(error));
    return std::unexpected(std::move(errors));
  }

 private:
  void read_lines() {
    auto lines = LineReader::open(lines_file_, policy::kMaxEntryLine);
    if (!lines) return fault(0, lines.error());
    policy::JsonLineParser parser;
    for (std::size_t number = 1;; ++number) {
      const auto line = lines->next();
      if (!line) return fault(number, line.error());
      if (!*line) return;
      if (rows_.size() >= kMaxRows)
        return fault(number, "more than " + std::to_string(kMaxRows) + " entries");
      read_line(**line, static_cast<unsigned>(number), parser);
      if (line_errors_.count() >= policy::kMaxSpecErrors) return;
      if (number % kLinesBetweenStops == 0 && stop_.stop_requested())
        return fault(0, "the daemon ends");
    }
  }

  void read_line(std::string_view line, unsigned number, policy::JsonLineParser& parser) {
    const auto document = parser.parse(line);
    line_errors_.set_first_line(number);
    if (document) return reader_.read(Place(**document), line_errors_);
    add(line_errors_, {}, document.error().location, document.error().reason);
  }

  // Line 0 is the file itself.
  void fault(std::size_t line, std::string reason) {
    line_errors_.set_first_line(static_cast<unsigned>(std::max<std::size_t>(line, 1)));
    add(line_errors_, {}, {line == 0 ? 0U : 1U, line == 0 ? 0U : 1U}, std::move(reason));
  }

  void refuse_repeated() {
    for (const auto& [again, first] : rows_.index(policy::kMaxSpecErrors)) {
      const std::string reason = "the key is given twice, first at " + place_of(first);
      const std::size_t in_spec = spec_.entries.items.size();
      if (again < in_spec)
        add(spec_errors_, entries_pointer_ + '/' + std::to_string(again) + "/key",
            spec_.entries.items[again].location, reason);
      else
        fault(again - in_spec + 1, reason);
    }
  }

  // Every line is a row.
  [[nodiscard]] std::string place_of(std::size_t row) const {
    const std::size_t in_spec = spec_.entries.items.size();
    if (row >= in_spec) return lines_file_ + ':' + std::to_string(row - in_spec + 1);
    return file_ + ':' + std::to_string(spec_.entries.items[row].location.line) + ": " +
           entries_pointer_ + '/' + std::to_string(row);
  }

  const std::string& file_;
  const MapSpec& spec_;
  const std::stop_token& stop_;
  DeclaredRows rows_;
  RowReader reader_;
  const std::string entries_pointer_;
  SpecErrors spec_errors_;
  const std::string lines_file_;
  SpecErrors line_errors_;
};

}  // namespace

std::size_t DeclaredRows::slot_of(std::span<const std::byte> key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = maps::RowKeyHash{}(maps::RowKey(0, key)) & mask;
  while (slots_[slot] != 0 && !std::ranges::equal(this->key(slots_[slot] - 1), key))
    slot = (slot + 1) & mask;
  return slot;
}

std::vector<std::pair<std::size_t, std::size_t>> DeclaredRows::index(std::size_t max) {
  slots_.assign(std::bit_ceil(2 * size() + 1), 0);
  std::vector<std::pair<std::size_t, std::size_t>> repeated;
  for (std::size_t row = 0; row < size() && repeated.size() < max; ++row) {
    std::uint32_t& slot = slots_[slot_of(key(row))];
    if (slot != 0) {
      repeated.emplace_back(row, slot - 1);
    } else {
      slot = static_cast<std::uint32_t>(row + 1);
    }
  }
  return repeated;
}

bool DeclaredRows::contains(std::span<const std::byte> key) const {
  return slots_[slot_of(key)] != 0;
}

std::expected<schema::MapLayouts, std::vector<SpecError>> choose_layouts(
    const std::string& file, const MapSpec& spec, const maps::MapInfo& info,
    const schema::MapLayouts& of_map) {
  SpecErrors errors(file);
  schema::MapLayouts layouts = of_map;
  if (spec.key_layout) layouts.key = *spec.key_layout;
  if (spec.value_layout) layouts.value = *spec.value_layout;
  const auto check_size = [&](const char* what, std::uint32_t is, std::uint32_t of_the_map) {
    if (is == of_the_map) return;
    add(errors, spec.pointer + "/layout/" + what, spec.location,
        "has " + std::to_string(is) + " bytes; the map's have " + std::to_string(of_the_map));
  };
  check_size("key", layouts.key.size, info.key_size);
  check_size("value", layouts.value.size, info.value_size);
  if (spec.create && spec.create->type != info.type)
    add(errors, spec.pointer + "/create/type", spec.location,
        "the map at " + spec.pin + " is of type " + maps::describe_type(info.type));
  if (spec.create &&
      (spec.create->key_size != info.key_size || spec.create->value_size != info.value_size))
    add(errors, spec.pointer + "/create", spec.location,
        "the map at " + spec.pin + " has keys of " + std::to_string(info.key_size) +
            " and values of " + std::to_string(info.value_size) + " bytes");
  for (const policy::MapHint& hint : spec.hints) {
    policy::Layout& layout = hint.path.starts_with("key") ? layouts.key : layouts.value;
    if (auto applied = schema::apply_hint(layout, layout_path(hint.path), hint.hint); !applied)
      add(errors, spec.pointer + "/hints/" + hint.path, hint.location, applied.error());
  }
  if (!errors.empty()) return std::unexpected(std::move(errors).finish());
  return layouts;
}

std::expected<DeclaredRows, std::vector<SpecError>> load_declared_rows(
    const std::string& file, const MapSpec& spec, DeclaredTarget& target,
    const std::stop_token& stop) {
  return Loader(file, spec, target, stop).load();
}

}  // namespace mapgate::engine
