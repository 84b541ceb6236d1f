// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/layout_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

namespace mapgate::policy {
namespace {

using Kind = Layout::Kind;

struct NamedType {
  std::string_view name;
  Kind kind;
  std::uint32_t size;
  std::uint32_t alignment;
  bool is_signed = false;
  bool big_endian = false;
};
constexpr auto kTypes = std::to_array<NamedType>({
    {"u8", Kind::kInteger, 1, 1},
    {"u16", Kind::kInteger, 2, 2},
    {"u32", Kind::kInteger, 4, 4},
    {"u64", Kind::kInteger, 8, 8},
    {"u128", Kind::kInteger, 16, 16},
    {"i8", Kind::kInteger, 1, 1, true},
    {"i16", Kind::kInteger, 2, 2, true},
    {"i32", Kind::kInteger, 4, 4, true},
    {"i64", Kind::kInteger, 8, 8, true},
    {"i128", Kind::kInteger, 16, 16, true},
    {"be16", Kind::kInteger, 2, 2, false, true},
    {"be32", Kind::kInteger, 4, 4, false, true},
    {"be64", Kind::kInteger, 8, 8, false, true},
    {"bool", Kind::kBoolean, 1, 1},
    {"ipv4", Kind::kAddress, 4, 4},
    {"ipv6", Kind::kAddress, 16, 4},
    {"char", Kind::kText, 1, 1},
    {"hex", Kind::kBytes, 1, 1},
});

struct Sized {
  Layout layout;
  std::uint32_t alignment = 1;
};

std::uint64_t align(std::uint64_t offset, std::uint32_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// The N of "[N]"; nothing if it is no number in 1..kMaxLayoutBytes.
std::optional<std::uint32_t> parse_count(std::string_view text) {
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (count == 0 || count > kMaxLayoutBytes) return std::nullopt;
  return count;
}

class LayoutReader {
 public:
  explicit LayoutReader(SpecErrors& errors) : errors_(errors) {}

  std::optional<Sized> read(const Place& place) {
    return place.node().kind == DocumentNode::Kind::kMapping ? read_struct(place)
                                                             : read_named(place);
  }

 private:
  std::optional<Sized> read_named(const Place& place) {
    const auto text = read_string(errors_, place);
    if (!text) return std::nullopt;
    const std::size_t bracket = std::min(text->find('['), text->size());
    const auto type = std::ranges::find(kTypes, text->substr(0, bracket), &NamedType::name);
    if (type == kTypes.end()) {
      std::vector<std::string_view> names;
      for (const NamedType& known : kTypes) names.push_back(known.name);
      errors_.add(place, in_quotes(*text) + " is not a type; there are " + list_names(names) +
                             ", each with a [count] behind it, and mappings of fields");
      return std::nullopt;
    }
    Layout layout{.kind = type->kind,
                  .size = type->size,
                  .is_signed = type->is_signed,
                  .big_endian = type->big_endian};
    if (bracket == text->size()) return Sized{std::move(layout), type->alignment};
    const auto count = text->ends_with(']')
                           ? parse_count(text->substr(bracket + 1, text->size() - bracket - 2))
                           : std::nullopt;
    if (!count || std::uint64_t{*count} * type->size > kMaxLayoutBytes) {
      errors_.add(place, in_quotes(*text) + " has no count that makes 1.." +
                             std::to_string(kMaxLayoutBytes) + " bytes");
      return std::nullopt;
    }
    return Sized{repeat(std::move(layout), *count), type->alignment};
  }

  static Layout repeat(Layout element, std::uint32_t count) {
    if (element.kind == Kind::kText || element.kind == Kind::kBytes) {
      element.size = count;
      return element;
    }
    Layout array{.kind = Kind::kArray, .size = element.size * count};
    array.count = count;
    array.parts.push_back(std::move(element));
    return array;
  }

  std::optional<Sized> read_struct(const Place& place) {
    const DocumentNode& node = place.node();
    Sized result{.layout = {.kind = Kind::kStruct}};
    std::uint64_t end = 0;
    bool sound = !node.items.empty();
    if (!sound) errors_.add(place, "a struct has at least one field");
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string& name = node.keys[i].text;
      const Place field(place, name, node.items[i]);
      auto part = read(field);
      if (name.empty() || std::ranges::find(result.layout.parts, name, &Layout::name) !=
                              result.layout.parts.end()) {
        errors_.add(field, node.keys[i].location,
                    "the field " + in_quotes(name) + " is empty or given twice");
        part.reset();
      }
      if (++parts_ > kMaxLayoutParts) {
        errors_.add(field, "more than " + std::to_string(kMaxLayoutParts) + " fields");
        return std::nullopt;
      }
      sound = sound && part;
      if (!part) continue;
      part->layout.name = name;
      part->layout.is_padding = is_padding_name(name);
      const std::uint64_t offset = align(end, part->alignment);
      end = offset + part->layout.size;
      if (end > kMaxLayoutBytes) {
        errors_.add(field,
                    "the struct has more than " + std::to_string(kMaxLayoutBytes) + " bytes");
        return std::nullopt;
      }
      part->layout.offset = static_cast<std::uint32_t>(offset);
      result.alignment = std::max(result.alignment, part->alignment);
      result.layout.parts.push_back(std::move(part->layout));
    }
    result.layout.size = static_cast<std::uint32_t>(align(end, result.alignment));
    return sound ? std::optional(std::move(result)) : std::nullopt;
  }

  SpecErrors& errors_;
  std::size_t parts_ = 0;
};

}  // namespace

std::optional<Layout> read_layout(SpecErrors& errors, const Place& place) {
  auto sized = LayoutReader(errors).read(place);
  if (!sized) return std::nullopt;
  return std::move(sized->layout);
}

bool is_padding_name(std::string_view name) {
  const std::size_t start = name.find_first_not_of('_');
  if (start == std::string_view::npos) return false;
  name.remove_prefix(start);
  while (!name.empty() && ((name.back() >= '0' && name.back() <= '9') || name.back() == '_'))
    name.remove_suffix(1);
  return name == "pad" || name == "padding" || name == "unused" || name == "reserved";
}

}  // namespace mapgate::policy
