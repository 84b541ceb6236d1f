// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/declared_rows.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <thread>

#include <mapgate/maps/inner_map.h>
#include <mapgate/maps/lpm.h>
#include <mapgate/maps/map_error.h>
#include <mapgate/maps/row.h>
#include <mapgate/reconciler/staggered.h>

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
using reconciler::HashIndex;

constexpr std::size_t kMaxRows = std::size_t{1} << 26;
constexpr std::size_t kLinesBetweenStops = 1024;

std::string_view layout_path(std::string_view path) {
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

std::uint32_t hash_of(std::span<const std::byte> key) {
  return static_cast<std::uint32_t>(maps::RowKeyHash{}(maps::RowKey(0, key)));
}

using KeyAndValue = std::pair<const DocumentNode*, const DocumentNode*>;

KeyAndValue key_and_value(const Place& entry, SpecErrors& errors) {
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

void check_key(const maps::MapInfo& info, const Place& place, std::span<const std::byte> key,
               SpecErrors& errors) {
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
  } else if (maps::has_indices(info.type) && number >= info.max_entries) {
    errors.add(place, "the array ends at index " + std::to_string(info.max_entries - 1));
  }
}

// Writes what the entry is into `key` and `value`, and finds its faults.
void read_entry(const maps::MapInfo& info, schema::MapLayouts& layouts, const Place& entry,
                std::span<std::byte> key, std::span<std::byte> value, SpecErrors& errors) {
  const auto [key_node, value_node] = key_and_value(entry, errors);
  if (key_node == nullptr || value_node == nullptr) return;
  const Place key_place(entry, "key", *key_node);
  if (schema::encode(layouts.key, key_place, errors, key)) check_key(info, key_place, key, errors);
  static_cast<void>(
      schema::encode(layouts.value, Place(entry, "value", *value_node), errors, value));
}

// Fills rows from entries, and finds their faults.
class RowReader {
 public:
  RowReader(DeclaredTarget& target, DeclaredRows& rows) : target_(target), rows_(rows) {}

  // Adds one row, whatever the entry is like.
  void read(const Place& entry, SpecErrors& errors) {
    if (target_.inner) return read_outer(*target_.inner, entry, errors);
    const std::span<std::byte> row = rows_.add();
    read_entry(target_.info, target_.layouts, entry, row.first(target_.info.key_size),
               row.subspan(target_.info.key_size), errors);
  }

 private:
  // An entry of a map of maps: its value is a list, the entries of the inner map.
  void read_outer(InnerTarget& inner, const Place& entry, SpecErrors& errors) {
    std::vector<std::byte> key(target_.info.key_size);
    maps::RowValue value;
    const auto [key_node, value_node] = key_and_value(entry, errors);
    if (key_node != nullptr && value_node != nullptr) {
      const Place key_place(entry, "key", *key_node);
      if (schema::encode(target_.layouts.key, key_place, errors, key))
        check_key(target_.info, key_place, key, errors);
      value = read_inner(inner, Place(entry, "value", *value_node), errors);
    }
    const std::span<std::byte> row = rows_.add(value.size());
    std::ranges::copy(key, row.begin());
    std::ranges::copy(value.bytes(), row.begin() + target_.info.key_size);
  }

  static maps::RowValue read_inner(InnerTarget& inner, const Place& list, SpecErrors& errors) {
    const std::size_t before = errors.count();
    std::vector<maps::InnerEntry> entries;
    policy::read_list(errors, list, policy::EmptyList::kAllowed, [&](const Place& item) {
      auto& [key, value] = entries.emplace_back(std::vector<std::byte>(inner.info.key_size),
                                                std::vector<std::byte>(inner.info.value_size));
      read_entry(inner.info, inner.layouts, item, key, value, errors);
    });
    // Before an array's zeros are left out; an entry that could not be read has no key.
    if (errors.count() == before) refuse_repeated(entries, list, errors);
    if (errors.count() != before) return {};
    auto value = maps::inner_map_value(inner.info, std::move(entries));
    if (value) return std::move(*value);
    errors.add(list, value.error());
    return {};
  }

  static void refuse_repeated(std::span<const maps::InnerEntry> entries, const Place& list,
                              SpecErrors& errors) {
    std::vector<std::size_t> order(entries.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, {}, [&](std::size_t i) -> const auto& { return entries[i].first; });
    const std::vector<DocumentNode>& items = list.node().items;
    for (std::size_t first = 0, i = 1; i < order.size(); ++i) {
      if (entries[order[first]].first != entries[order[i]].first) {
        first = i;
        continue;
      }
      const Place again(list, order[i], items[order[i]]);
      errors.add(Place(again, "key", *key_and_value(again, errors).first),
                 "the key is given twice, first at " +
                     Place(list, order[first], items[order[first]]).pointer());
    }
  }

  DeclaredTarget& target_;
  DeclaredRows& rows_;
};

// Of a map of maps: each its own.
std::optional<std::uint32_t> value_size_of(const DeclaredTarget& target) {
  return target.inner ? std::nullopt : std::optional(target.info.value_size);
}

// A fault that is not about a part of a document.
void add(SpecErrors& errors, const std::string& pointer, Location location, std::string reason) {
  errors.add(Place(pointer, DocumentNode()), location, std::move(reason));
}

// Reads a part of a file of lines, on a thread of its own.
class PartLoader {
 public:
  PartLoader(const std::string& file, LineReader::Part part, const DeclaredTarget& target,
             const std::stop_token& stop)
      : file_(file),
        part_(part),
        stop_(stop),
        target_(target),
        rows_(target.info.key_size, value_size_of(target)),
        errors_(file) {}

  void load() {
    auto reader = LineReader::open(file_, policy::kMaxEntryLine, part_);
    if (!reader) return refuse_file(reader.error());
    RowReader rows(target_, rows_);
    policy::JsonLineParser parser;
    while (errors_.count() < policy::kMaxSpecErrors) {
      const auto line = reader->next();
      if (line && !*line) return;
      errors_.set_first_line(static_cast<unsigned>(++lines_));
      if (!line) return add(errors_, {}, {1, 1}, line.error());
      if (rows_.size() >= kMaxRows) return refuse_file("has too many entries");
      const auto document = parser.parse(**line);
      if (document) {
        rows.read(Place(**document), errors_);
      } else {
        add(errors_, {}, document.error().location, document.error().reason);
      }
      if (lines_ % kLinesBetweenStops == 0 && stop_.stop_requested())
        return refuse_file("the daemon ends");
    }
  }

  [[nodiscard]] std::size_t lines() const { return lines_; }
  [[nodiscard]] DeclaredRows& rows() { return rows_; }
  [[nodiscard]] DeclaredTarget& target() { return target_; }
  // Of a part behind `lines_before` others.
  void append_faults(std::size_t lines_before, std::vector<SpecError>& faults) && {
    for (SpecError& error : std::move(errors_).finish()) {
      if (error.line > 0) error.line += static_cast<unsigned>(lines_before);
      faults.push_back(std::move(error));
    }
  }
  [[nodiscard]] bool has_faults() const { return !errors_.empty() || !file_fault_.empty(); }
  // Why the file as a whole is refused; empty if it is not.
  [[nodiscard]] const std::string& file_fault() const { return file_fault_; }

 private:
  void refuse_file(std::string reason) { file_fault_ = std::move(reason); }

  const std::string& file_;
  const LineReader::Part part_;
  const std::stop_token& stop_;
  DeclaredTarget target_;  // a copy: it remembers what is written
  DeclaredRows rows_;
  SpecErrors errors_;
  std::string file_fault_;  // not of a line
  std::size_t lines_ = 0;
};

// Parts of about the same size, one for each processor, if that is worth a thread.
std::vector<LineReader::Part> parts_of(const std::string& file) {
  constexpr std::uint64_t kWorthAThread = 4U << 20;
  constexpr std::uint64_t kMaxThreads = 8;
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(file, error);
  const std::uint64_t size = regular ? std::filesystem::file_size(file, error) : 0;
  const std::uint64_t threads =
      error ? 1
            : std::clamp<std::uint64_t>(
                  size / kWorthAThread, 1,
                  std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads));
  std::vector<LineReader::Part> parts(threads);
  for (std::uint64_t i = 1; i < threads; ++i)
    parts[i - 1].end = parts[i].begin = size / threads * i;
  return parts;
}

class Loader {
 public:
  Loader(const std::string& file, const MapSpec& spec, DeclaredTarget& target,
         const std::stop_token& stop)
      : file_(file),
        spec_(spec),
        target_(target),
        stop_(stop),
        rows_(target.info.key_size, value_size_of(target)),
        entries_pointer_(spec.pointer + "/entries"),
        lines_file_(spec.entries_from ? spec.entries_from->native() : std::string()) {}

  std::expected<DeclaredRows, std::vector<SpecError>> load() {
    read_entries();
    if (spec_.entries_from) read_lines();
    if (faults_.empty()) refuse_repeated();
    if (faults_.empty()) return std::move(rows_);
    if (faults_.size() > policy::kMaxSpecErrors) faults_.resize(policy::kMaxSpecErrors);
    return std::unexpected(std::move(faults_));
  }

 private:
  void read_entries() {
    SpecErrors errors(file_);
    RowReader reader(target_, rows_);
    const Place list(entries_pointer_, spec_.entries);
    for (std::size_t i = 0; i < spec_.entries.items.size(); ++i)
      reader.read(Place(list, i, spec_.entries.items[i]), errors);
    faults_ = std::move(errors).finish();
  }

  void read_lines() {
    std::deque<PartLoader> parts;
    for (const LineReader::Part part : parts_of(lines_file_))
      parts.emplace_back(lines_file_, part, target_, stop_);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 1; i < parts.size(); ++i)
        threads.emplace_back([&part = parts[i]] { part.load(); });
      parts.front().load();
    }
    std::size_t lines = 0;
    for (PartLoader& part : parts) {
      rows_.append(std::move(part.rows()));
      target_ = std::move(part.target());
      const bool stopped = part.has_faults();
      const std::size_t before = std::exchange(lines, lines + part.lines());
      if (!part.file_fault().empty()) refuse_file(part.file_fault());
      std::move(part).append_faults(before, faults_);
      // A part that was not read to its end does not know how many lines it has.
      if (stopped) return;
    }
    if (rows_.size() > kMaxRows)
      refuse_file("has more than " + std::to_string(kMaxRows) + " entries");
  }

  // By the place that names it: the file itself may not be there.
  void refuse_file(const std::string& reason) {
    faults_.push_back({.file = file_,
                       .line = spec_.location.line,
                       .column = spec_.location.column,
                       .pointer = spec_.pointer + "/entriesFrom",
                       .reason = lines_file_ + ": " + reason});
  }

  void refuse_repeated() {
    const std::size_t in_spec = spec_.entries.items.size();
    for (const auto& [again, first] : rows_.index(policy::kMaxSpecErrors)) {
      SpecError fault{.file = lines_file_,
                      .line = static_cast<unsigned>(again - in_spec + 1),
                      .column = 1,
                      .reason = "the key is given twice, first at " + place_of(first)};
      if (again < in_spec) {
        const Location location = spec_.entries.items[again].location;
        fault.file = file_;
        fault.line = location.line;
        fault.column = location.column;
        fault.pointer = entries_pointer_ + '/' + std::to_string(again) + "/key";
      }
      faults_.push_back(std::move(fault));
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
  DeclaredTarget& target_;
  const std::stop_token& stop_;
  DeclaredRows rows_;
  const std::string entries_pointer_;
  const std::string lines_file_;
  std::vector<SpecError> faults_;
};

// As struct bpf_lpm_trie_key. All of it in hex is known not to be read.
bool is_trie_key(const policy::Layout& key) {
  if (key.kind == policy::Layout::Kind::kBytes) return true;
  if (key.kind != policy::Layout::Kind::kStruct || key.parts.empty()) return false;
  const policy::Layout& first = key.parts.front();
  return first.kind == policy::Layout::Kind::kInteger && first.size == sizeof(std::uint32_t) &&
         first.bit_size == 0 && !first.big_endian;
}

constexpr const char* kNoTrieKey = "the key of an LPM trie begins with its prefix length, a u32";

void check_sizes(const MapSpec& spec, const std::string& where, const schema::MapLayouts& layouts,
                 const maps::MapInfo& info, SpecErrors& errors) {
  const auto check = [&](const char* what, std::uint32_t is, std::uint32_t of_the_map) {
    if (is == of_the_map) return;
    add(errors, spec.pointer + where + what, spec.location,
        "has " + std::to_string(is) + " bytes; the map's have " + std::to_string(of_the_map));
  };
  check("key", layouts.key.size, info.key_size);
  check("value", layouts.value.size, info.value_size);
}

// By the spec, else by those that are there.
void choose_inner(const MapSpec& spec, DeclaredTarget& target, SpecErrors& errors) {
  const std::string pointer = spec.pointer + "/inner";
  const bool known = target.info.type != BPF_MAP_TYPE_UNSPEC;
  if (known && !maps::is_map_of_maps(target.info.type)) {
    if (spec.inner)
      add(errors, pointer, spec.location,
          "the map at " + spec.pin + " is of type " + maps::describe_type(target.info.type) +
              ", and has no inner maps");
    return;
  }
  if (!spec.inner) {
    if (known && !target.inner)
      add(errors, pointer, spec.location,
          "the map at " + spec.pin + " holds no map so far: say here how its inner maps are made");
    return;
  }
  const std::optional<InnerTarget> there = std::exchange(target.inner, described_inner(spec));
  InnerTarget& inner = *target.inner;
  if (there && !maps::are_made_alike(there->info, inner.info))
    add(errors, pointer, spec.location,
        "the inner maps at " + spec.pin + " are another kind: " + maps::describe_map(there->info));
  else if (there && !spec.inner->key_layout)
    inner.layouts = there->layouts;
  if (inner.info.type == BPF_MAP_TYPE_LPM_TRIE && !is_trie_key(inner.layouts.key))
    add(errors, pointer + "/layout/key", spec.location, kNoTrieKey);
}

}  // namespace

InnerTarget described_inner(const MapSpec& spec) {
  const policy::MapCreation& creation = spec.inner->creation;
  const maps::MapInfo info{.type = creation.type,
                           .key_size = creation.key_size,
                           .value_size = creation.value_size,
                           .max_entries = creation.max_entries,
                           .flags = creation.flags,
                           .name = "mg_inner"};
  return {info,
          {spec.inner->key_layout.value_or(schema::hex_layout(info.key_size)),
           spec.inner->value_layout.value_or(schema::hex_layout(info.value_size))}};
}

void DeclaredRows::append(DeclaredRows rows) {
  for (const std::size_t end : rows.ends_) ends_.push_back(bytes_.size() + end);
  if (bytes_.empty()) {
    bytes_ = std::move(rows.bytes_);
  } else {
    bytes_.insert(bytes_.end(), rows.bytes_.begin(), rows.bytes_.end());
  }
}

HashIndex::Number DeclaredRows::find(std::span<const std::byte> key, std::uint32_t hash) const {
  return index_.find(
      hash, [&](HashIndex::Number row) { return std::ranges::equal(this->key(row), key); });
}

std::vector<std::pair<std::size_t, std::size_t>> DeclaredRows::index(std::size_t max) {
  index_.reserve(size());
  std::vector<std::uint32_t> hashes(size());
  std::vector<std::pair<std::size_t, std::size_t>> repeated;
  reconciler::staggered(
      size(),
      [&](std::size_t row) {
        hashes[row] = hash_of(key(row));
        index_.prefetch(hashes[row]);
      },
      [&](std::size_t row) {
        const HashIndex::Number first = find(key(row), hashes[row]);
        if (first == HashIndex::kNone)
          index_.insert(hashes[row], static_cast<HashIndex::Number>(row));
        else if (repeated.size() < max)
          repeated.emplace_back(row, first);
      });
  return repeated;
}

bool DeclaredRows::contains(std::span<const std::byte> key) const {
  return find(key, hash_of(key)) != HashIndex::kNone;
}

std::expected<void, std::vector<SpecError>> choose_layouts(const std::string& file,
                                                           const MapSpec& spec,
                                                           DeclaredTarget& target) {
  SpecErrors errors(file);
  choose_inner(spec, target, errors);
  const maps::MapInfo& info = target.info;
  schema::MapLayouts& layouts = target.layouts;
  if (spec.key_layout) layouts.key = *spec.key_layout;
  if (spec.value_layout) layouts.value = *spec.value_layout;
  check_sizes(spec, "/layout/", layouts, info, errors);
  if (info.type == BPF_MAP_TYPE_LPM_TRIE && !is_trie_key(layouts.key))
    add(errors, spec.pointer + "/layout/key", spec.location, kNoTrieKey);
  if (spec.create && spec.create->type != info.type)
    add(errors, spec.pointer + "/create/type", spec.location,
        "the map at " + spec.pin + " is of type " + maps::describe_type(info.type));
  if (spec.create &&
      (spec.create->key_size != info.key_size || spec.create->value_size != info.value_size))
    add(errors, spec.pointer + "/create", spec.location,
        "the map at " + spec.pin + " has keys of " + std::to_string(info.key_size) +
            " and values of " + std::to_string(info.value_size) + " bytes");
  for (const policy::MapHint& hint : spec.hints) {
    if (target.inner && !hint.path.starts_with("key")) {
      add(errors, spec.pointer + "/hints/" + hint.path, hint.location,
          "the values are inner maps, which inner.layout describes");
      continue;
    }
    policy::Layout& layout = hint.path.starts_with("key") ? layouts.key : layouts.value;
    if (auto applied = schema::apply_hint(layout, layout_path(hint.path), hint.hint); !applied)
      add(errors, spec.pointer + "/hints/" + hint.path, hint.location, applied.error());
  }
  if (!errors.empty()) return std::unexpected(std::move(errors).finish());
  return {};
}

std::expected<DeclaredRows, std::vector<SpecError>> load_declared_rows(
    const std::string& file, const MapSpec& spec, DeclaredTarget& target,
    const std::stop_token& stop) {
  return Loader(file, spec, target, stop).load();
}

std::optional<DeclaredTarget> described_target(const MapSpec& spec) {
  if (!spec.create && !spec.key_layout) return std::nullopt;
  maps::MapInfo info;
  info.type = spec.create ? spec.create->type : BPF_MAP_TYPE_UNSPEC;
  info.max_entries = spec.create ? spec.create->max_entries : UINT32_MAX;
  info.key_size = spec.create ? spec.create->key_size : spec.key_layout->size;
  info.value_size = spec.create         ? spec.create->value_size
                    : spec.value_layout ? spec.value_layout->size
                                        : sizeof(std::uint32_t);
  return DeclaredTarget{info,
                        {schema::hex_layout(info.key_size), schema::hex_layout(info.value_size)}};
}

std::vector<SpecError> check_declared_rows(const std::string& file,
                                           const std::vector<MapSpec>& specs) {
  std::vector<SpecError> faults;
  const auto add_all = [&](const std::vector<SpecError>& found) {
    faults.insert(faults.end(), found.begin(), found.end());
  };
  for (const MapSpec& spec : specs) {
    auto target = described_target(spec);
    if (!target) continue;
    if (auto chosen = choose_layouts(file, spec, *target); !chosen) {
      add_all(chosen.error());
      continue;
    }
    if (const auto rows = load_declared_rows(file, spec, *target, {}); !rows) add_all(rows.error());
  }
  return faults;
}

}  // namespace mapgate::engine
