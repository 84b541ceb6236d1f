// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/spec_maps.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <mapgate/maps/map_error.h>

#include "agent/policy/layout_text.h"

namespace mapgate::policy {
namespace {

constexpr std::size_t kMaxName = 128;
constexpr std::size_t kMaxPath = 4095;  // PATH_MAX without the zero
constexpr std::uint32_t kMaxEntries = 1U << 26;
constexpr std::uint32_t kMaxKeySize = 512;  // of a hash: a program has it on its stack
constexpr std::uint32_t kLpmPrefixLengthSize = 4;
constexpr std::uint32_t kMaxPerCpuValueSize = 32767;  // half of a row's: CPUs may differ

bool is_name(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@:";
  return !text.empty() && text.size() <= kMaxName &&
         text.find_first_not_of(kLetters) == std::string_view::npos;
}

class MapsReader {
 public:
  MapsReader(SpecErrors& errors, std::string_view file) : errors_(errors), file_(file) {}

  std::vector<MapSpec> read(const Place& place) {
    std::vector<MapSpec> maps;
    read_list(errors_, place, EmptyList::kAllowed,
              [&](const Place& item) { maps.push_back(read_map(item)); });
    if (maps.size() > kMaxDeclaredMaps)
      errors_.add(place, "more than " + std::to_string(kMaxDeclaredMaps) + " maps");
    return maps;
  }

 private:
  MapSpec read_map(const Place& place) {
    MapSpec map;
    map.pointer = place.pointer();
    map.location = place.node().location;
    Fields fields(errors_, place);
    if (const auto name = fields.required("name")) map.name = read_name(*name);
    if (const auto pin = fields.required("pin")) map.pin = read_pin(*pin);
    if (const auto prune = fields.optional("prune"))
      map.prune = read_boolean(errors_, *prune).value_or(false);
    if (const auto entries = fields.optional("entries")) map.entries = read_entries(*entries);
    if (const auto from = fields.optional("entriesFrom")) map.entries_from = read_file(*from);
    if (const auto inner = fields.optional("inner")) map.inner = read_inner(*inner);
    if (const auto layout = fields.optional("layout")) read_outer_layouts(*layout, map);
    if (const auto create = fields.optional("create")) map.create = read_creation(*create, map);
    if (const auto hints = fields.optional("hints")) map.hints = read_hints(*hints);
    fields.finish();
    return map;
  }

  std::string read_name(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return {};
    if (!is_name(*text)) {
      errors_.add(place, in_quotes(*text) + " is not 1.." + std::to_string(kMaxName) +
                             " letters, digits, '.', '_', '-', '@' or ':'");
    } else if (text->starts_with("mg_")) {
      errors_.add(place, "names that begin with mg_ are those of mapgate's own maps");
    } else {
      refuse_repeated(place, names_, *text, "name");
    }
    return std::string(*text);
  }

  std::string read_pin(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return {};
    if (!text->starts_with('/') || text->size() > kMaxPath || text->contains('\0')) {
      errors_.add(place, in_quotes(*text) + " is not an absolute path");
      return {};
    }
    std::string pin = std::filesystem::path(*text).lexically_normal().native();
    if (pin.ends_with('/')) {
      errors_.add(place, in_quotes(*text) + " is a folder");
      return {};
    }
    if (std::filesystem::path(pin).filename().native().contains('.')) {
      errors_.add(place, in_quotes(*text) + " has a dot: the kernel keeps such names for itself");
      return {};
    }
    refuse_repeated(place, pins_, pin, "pin");
    return pin;
  }

  // Two declarations of one map would undo each other's work for ever.
  void refuse_repeated(const Place& place, std::map<std::string, std::string>& given,
                       std::string_view text, const std::string& what) {
    const auto [first, is_new] = given.emplace(text, place.pointer());
    if (!is_new)
      errors_.add(place, "the " + what + " " + in_quotes(text) + " is given twice, first at " +
                             first->second);
  }

  // Only their shape: what keys and values are is for the map to say.
  DocumentNode read_entries(const Place& place) {
    read_list(errors_, place, EmptyList::kAllowed, [&](const Place& item) {
      Fields fields(errors_, item);
      static_cast<void>(fields.required("key"));
      static_cast<void>(fields.required("value"));
      fields.finish();
    });
    return place.node();
  }

  std::optional<std::filesystem::path> read_file(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return std::nullopt;
    if (text->empty() || text->size() > kMaxPath || text->contains('\0')) {
      errors_.add(place, in_quotes(*text) + " is not a path");
      return std::nullopt;
    }
    return std::filesystem::path(file_).parent_path() / *text;
  }

  // The values of a map of maps are its inner maps, which have a layout of their own.
  void read_outer_layouts(const Place& place, MapSpec& map) {
    if (!map.inner) return read_layouts(place, map.key_layout, map.value_layout);
    Fields fields(errors_, place);
    if (const auto key = fields.required("key")) map.key_layout = read_layout(errors_, *key);
    fields.finish();
  }

  void read_layouts(const Place& place, std::optional<Layout>& key_layout,
                    std::optional<Layout>& value_layout) {
    Fields fields(errors_, place);
    if (const auto key = fields.required("key")) key_layout = read_layout(errors_, *key);
    if (const auto value = fields.required("value")) value_layout = read_layout(errors_, *value);
    fields.finish();
  }

  InnerMapSpec read_inner(const Place& place) {
    InnerMapSpec inner;
    Fields fields(errors_, place);
    if (const auto layout = fields.optional("layout"))
      read_layouts(*layout, inner.key_layout, inner.value_layout);
    if (const auto type = fields.required("type"))
      inner.creation.type = read_choice<bpf_map_type>(errors_, *type,
                                                      {{"hash", BPF_MAP_TYPE_HASH},
                                                       {"lpm_trie", BPF_MAP_TYPE_LPM_TRIE},
                                                       {"array", BPF_MAP_TYPE_ARRAY}})
                                .value_or(inner.creation.type);
    read_sizes(place, fields, inner.key_layout, inner.value_layout, inner.creation);
    return inner;
  }

  std::optional<std::uint32_t> read_count(const std::optional<Place>& place,
                                          std::uint32_t greatest) {
    if (!place) return std::nullopt;
    const auto value = read_integer(errors_, *place, 1, greatest);
    if (!value) return std::nullopt;
    return static_cast<std::uint32_t>(*value);
  }

  std::optional<MapCreation> read_creation(const Place& place, const MapSpec& map) {
    MapCreation creation;
    Fields fields(errors_, place);
    if (const auto type = fields.required("type")) {
      const auto read = read_choice<bpf_map_type>(errors_, *type,
                                                  {{"hash", BPF_MAP_TYPE_HASH},
                                                   {"lpm_trie", BPF_MAP_TYPE_LPM_TRIE},
                                                   {"array", BPF_MAP_TYPE_ARRAY},
                                                   {"percpu_hash", BPF_MAP_TYPE_PERCPU_HASH},
                                                   {"percpu_array", BPF_MAP_TYPE_PERCPU_ARRAY},
                                                   {"hash_of_maps", BPF_MAP_TYPE_HASH_OF_MAPS},
                                                   {"array_of_maps", BPF_MAP_TYPE_ARRAY_OF_MAPS}});
      creation.type = read.value_or(creation.type);
      if (read && maps::is_map_of_maps(*read) != map.inner.has_value())
        errors_.add(*type, map.inner ? "the map has inner maps, which this type has not"
                                     : "the field inner of the map must say how its inner maps "
                                       "are made");
    }
    // A map of maps has the inner map's id as its value.
    const std::optional<Layout> id = Layout{.size = sizeof(std::uint32_t)};
    read_sizes(place, fields, map.key_layout,
               maps::is_map_of_maps(creation.type) ? id : map.value_layout, creation);
    return creation;
  }

  // What `creation` says beside its type, and the end of the fields.
  void read_sizes(const Place& place, Fields& fields, const std::optional<Layout>& key_layout,
                  const std::optional<Layout>& value_layout, MapCreation& creation) {
    const auto key_size = fields.optional("keySize");
    const auto value_size = fields.optional("valueSize");
    creation.max_entries = read_count(fields.required("maxEntries"), kMaxEntries).value_or(1);
    if (const auto flags = fields.optional("flags")) creation.flags = read_flags(*flags);
    fields.finish();
    creation.key_size = read_size(place, key_size, key_layout, "keySize", kMaxKeySize).value_or(4);
    creation.value_size =
        read_size(place, value_size, value_layout, "valueSize",
                  maps::is_per_cpu(creation.type) ? kMaxPerCpuValueSize : kMaxLayoutBytes)
            .value_or(4);
    // A trie has no other way to be.
    if (creation.type == BPF_MAP_TYPE_LPM_TRIE) creation.flags |= BPF_F_NO_PREALLOC;
    if (creation.type == BPF_MAP_TYPE_LPM_TRIE && creation.key_size <= kLpmPrefixLengthSize)
      errors_.add(place, "the key of an lpm_trie has a 4-byte prefix length and at least one byte");
    if (maps::has_indices(creation.type) && creation.key_size != sizeof(std::uint32_t))
      errors_.add(place, "the key of an array has 4 bytes");
  }

  // From the field, or from the layout; if both say it they have to agree.
  std::optional<std::uint32_t> read_size(const Place& place, const std::optional<Place>& field,
                                         const std::optional<Layout>& layout,
                                         const std::string& name, std::uint32_t greatest) {
    const auto size = read_count(field, greatest);
    if (!field && !layout)
      errors_.add(place, "the field " + name + " is missing, and there is no layout to tell");
    if (size && layout && *size != layout->size)
      errors_.add(*field, name + " is " + std::to_string(*size) + ", but the layout has " +
                              std::to_string(layout->size) + " bytes");
    if (!field && layout && layout->size > greatest)
      errors_.add(place, name + " is more than " + std::to_string(greatest) + " by the layout");
    if (size) return size;
    return layout ? std::optional(layout->size) : std::nullopt;
  }

  std::uint32_t read_flags(const Place& place) {
    std::uint32_t flags = 0;
    read_list(errors_, place, EmptyList::kAllowed, [&](const Place& item) {
      flags |= read_choice<std::uint32_t>(errors_, item,
                                          {{"BPF_F_NO_PREALLOC", BPF_F_NO_PREALLOC},
                                           {"BPF_F_RDONLY_PROG", BPF_F_RDONLY_PROG},
                                           {"BPF_F_WRONLY_PROG", BPF_F_WRONLY_PROG},
                                           {"BPF_F_MMAPABLE", BPF_F_MMAPABLE}})
                   .value_or(0);
    });
    return flags;
  }

  std::vector<MapHint> read_hints(const Place& place) {
    std::vector<MapHint> hints;
    const DocumentNode& node = place.node();
    if (node.kind != DocumentNode::Kind::kMapping) errors_.add(place, "expected a mapping");
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& path = node.keys[i].text;
      const Place item(place, path, node.items[i]);
      const auto hint = read_choice<LayoutHint>(errors_, item,
                                                {{"address", LayoutHint::kAddress},
                                                 {"bigEndian", LayoutHint::kBigEndian},
                                                 {"text", LayoutHint::kText},
                                                 {"hex", LayoutHint::kHex}});
      const std::string_view root = std::string_view(path).substr(0, path.find('.'));
      if (root != "key" && root != "value")
        errors_.add(item, node.keys[i].location,
                    in_quotes(path) + " is not a path as in \"key\" or \"value.port\"");
      if (std::ranges::find(hints, path, &MapHint::path) != hints.end())
        errors_.add(item, node.keys[i].location, in_quotes(path) + " is given twice");
      if (hint) hints.push_back({path, *hint, node.keys[i].location});
    }
    return hints;
  }

  SpecErrors& errors_;
  std::string_view file_;
  std::map<std::string, std::string> names_;  // and where each is given
  std::map<std::string, std::string> pins_;
};

}  // namespace

std::vector<MapSpec> read_declared_maps(SpecErrors& errors, const Place& place,
                                        std::string_view file) {
  return MapsReader(errors, file).read(place);
}

}  // namespace mapgate::policy
