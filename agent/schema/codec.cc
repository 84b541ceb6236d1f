// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "agent/policy/address.h"
#include "agent/schema/integer_text.h"

namespace mapgate::schema {
namespace {

using policy::DocumentNode;
using policy::IpAddress;
using policy::Layout;
using policy::Place;
using policy::SpecErrors;
using Json = nlohmann::ordered_json;
using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;
using Kind = Layout::Kind;
using NodeKind = DocumentNode::Kind;

constexpr std::size_t kV4Size = 4;

Bytes part_of(Bytes bytes, const Layout& part) {
  return bytes.subspan(part.offset, part.size);
}
ConstBytes part_of(ConstBytes bytes, const Layout& part) {
  return bytes.subspan(part.offset, part.size);
}

bool is_zero(ConstBytes bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

unsigned bits_of(const Layout& layout) {
  return layout.bit_size != 0 ? layout.bit_size : layout.size * 8;
}

// Names as they are written here: those of anonymous members are their parent's.
void collect_names(const Layout& layout, std::vector<std::string_view>& names) {
  for (const Layout& part : layout.parts) {
    if (part.name.empty()) {
      collect_names(part, names);
    } else {
      names.push_back(part.name);
    }
  }
}

std::string names_of(const Layout& layout) {
  std::vector<std::string_view> names;
  collect_names(layout, names);
  return policy::list_names(names);
}

// --- numbers

// Of anything that can be one; else nothing.
std::optional<Integer> integer_of(const DocumentNode& node) {
  switch (node.kind) {
    case NodeKind::kInteger:
      if (node.integer < 0) return Integer{true, -static_cast<Uint128>(node.integer)};
      return Integer{false, static_cast<Uint128>(node.integer)};
    case NodeKind::kOtherNumber:
    case NodeKind::kString:
      return parse_integer(node.text);
    default:
      return std::nullopt;
  }
}

void store_integer(const Layout& layout, const Integer& integer, Bytes bytes) {
  const unsigned bits = bits_of(layout);
  const Uint128 value = to_bits(integer, bits);
  if (layout.bit_size != 0) {
    store_bits(value, layout.bit_offset, bits, bytes);
  } else {
    store(value, layout.big_endian, bytes);
  }
}

Integer load_integer(const Layout& layout, ConstBytes bytes) {
  const unsigned bits = bits_of(layout);
  const Uint128 value = layout.bit_size != 0 ? load_bits(bytes, layout.bit_offset, bits)
                                             : load(bytes, layout.big_endian);
  return from_bits(value, bits, layout.is_signed);
}

Json integer_json(const Integer& integer) {
  // JSON's numbers end there for most readers.
  if (!fits(integer, 64, integer.negative)) return to_text(integer);
  if (integer.negative)
    return static_cast<std::int64_t>(-static_cast<std::uint64_t>(integer.magnitude));
  return static_cast<std::uint64_t>(integer.magnitude);
}

class Encoder {
 public:
  explicit Encoder(SpecErrors& errors) : errors_(errors) {}

  bool encode(Layout& layout, const Place& place, Bytes bytes) {
    switch (layout.kind) {
      case Kind::kInteger:
        return integer(layout, place, bytes, "an integer");
      case Kind::kBoolean:
        return boolean(layout, place, bytes);
      case Kind::kEnum:
        return enumerator(layout, place, bytes);
      case Kind::kAddress:
        return address(place, bytes);
      case Kind::kText:
        return text(place, bytes);
      case Kind::kBytes:
        return hex(place, bytes);
      case Kind::kArray:
        return array(layout, place, bytes);
      case Kind::kStruct:
      case Kind::kUnion:
        return mapping(layout, place, bytes);
    }
    return false;
  }

 private:
  bool refuse(const Place& place, std::string reason) {
    errors_.add(place, std::move(reason));
    return false;
  }

  bool integer(const Layout& layout, const Place& place, Bytes bytes, const std::string& what) {
    const auto value = integer_of(place.node());
    if (!value || !fits(*value, bits_of(layout), layout.is_signed))
      return refuse(place,
                    "expected " + what + " in " + range_text(bits_of(layout), layout.is_signed));
    store_integer(layout, *value, bytes);
    return true;
  }

  bool boolean(const Layout& layout, const Place& place, Bytes bytes) {
    if (place.node().kind != NodeKind::kBoolean)
      return integer(layout, place, bytes, "true or false, or an integer");
    store_integer(layout, {false, place.node().boolean ? 1U : 0U}, bytes);
    return true;
  }

  bool enumerator(const Layout& layout, const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    if (node.kind == NodeKind::kString) {
      const auto found =
          std::ranges::find(layout.enumerators, node.text, &Layout::Enumerator::name);
      if (found != layout.enumerators.end()) {
        const bool negative = layout.is_signed && found->value < 0;
        const auto bits = static_cast<std::uint64_t>(found->value);
        const std::uint64_t magnitude = negative ? -bits : bits;
        store_integer(layout, {negative, magnitude}, bytes);
        return true;
      }
    }
    std::vector<std::string_view> names;
    for (const Layout::Enumerator& known : layout.enumerators) {
      if (names.size() == kMaxNames) {
        names.emplace_back("...");
        break;
      }
      names.push_back(known.name);
    }
    return integer(layout, place, bytes, "one of " + policy::list_names(names) + ", or an integer");
  }

  bool address(const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    const auto parsed = node.kind == NodeKind::kString ? IpAddress::parse(node.text) : std::nullopt;
    const bool wants_v4 = bytes.size() == kV4Size;
    if (!parsed || (wants_v4 && !parsed->is_v4()))
      return refuse(place, wants_v4 ? "expected an IPv4 address" : "expected an IP address");
    const IpAddress::Bytes& octets = parsed->bytes();
    std::memcpy(bytes.data(), octets.data() + octets.size() - bytes.size(), bytes.size());
    return true;
  }

  bool text(const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    if (node.kind == NodeKind::kList) return octets(place, bytes);
    if (node.kind != NodeKind::kString) return refuse(place, "expected a string");
    if (node.text.size() > bytes.size())
      return refuse(place, "has " + std::to_string(node.text.size()) +
                               " bytes; there is room for " + std::to_string(bytes.size()));
    std::memcpy(bytes.data(), node.text.data(), node.text.size());
    return true;
  }

  // A list of bytes.
  bool octets(const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    if (node.items.size() != bytes.size())
      return refuse(place, "has " + std::to_string(node.items.size()) + " bytes, not " +
                               std::to_string(bytes.size()));
    const Layout octet{.kind = Kind::kInteger, .size = 1};
    bool sound = true;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      sound =
          integer(octet, Place(place, i, node.items[i]), bytes.subspan(i, 1), "a byte") && sound;
    return sound;
  }

  bool hex(const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    if (node.kind == NodeKind::kList) return octets(place, bytes);
    const std::string wanted = "expected " + std::to_string(bytes.size()) +
                               " bytes in hex, as in \"0x0a0b\", or a list of them";
    if (node.kind != NodeKind::kString || !node.text.starts_with("0x"))
      return refuse(place, wanted);
    const std::string_view digits = std::string_view(node.text).substr(2);
    if (digits.size() != 2 * bytes.size())
      return refuse(place, wanted + "; there are " + std::to_string(digits.size()) + " digits");
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto value = parse_integer("0x" + std::string(digits.substr(2 * i, 2)));
      if (!value) return refuse(place, wanted);
      bytes[i] = static_cast<std::byte>(value->magnitude);
    }
    return true;
  }

  bool array(Layout& layout, const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    Layout& element = layout.parts.front();
    // Bytes are easier read in hex.
    if (element.size == 1 && node.kind == NodeKind::kString) return hex(place, bytes);
    if (node.kind != NodeKind::kList)
      return refuse(place, "expected a list of " + std::to_string(layout.count));
    if (node.items.size() != layout.count)
      return refuse(place, "has " + std::to_string(node.items.size()) + " elements, not " +
                               std::to_string(layout.count));
    bool sound = true;
    for (std::size_t i = 0; i < layout.count; ++i)
      sound = encode(element, Place(place, i, node.items[i]),
                     bytes.subspan(i * element.size, element.size)) &&
              sound;
    return sound;
  }

  bool mapping(Layout& layout, const Place& place, Bytes bytes) {
    const DocumentNode& node = place.node();
    if (node.kind != NodeKind::kMapping)
      return refuse(place, "expected a mapping of " + names_of(layout));
    std::size_t used = 0;
    const bool sound = members(layout, place, bytes, used);
    return used == node.keys.size() ? sound : refuse_others(layout, place);
  }

  // `used` counts the fields of the document that belong to the layout, and is where the next one
  // most likely stands.
  bool members(Layout& layout, const Place& place, Bytes bytes, std::size_t& used) {
    if (layout.kind == Kind::kUnion) return member_of_union(layout, place, bytes, used);
    bool sound = true;
    for (Layout& part : layout.parts) sound = member(part, place, bytes, used) && sound;
    return sound;
  }

  bool member(Layout& part, const Place& place, Bytes bytes, std::size_t& used) {
    if (part.name.empty()) return members(part, place, part_of(bytes, part), used);
    const auto index = find(place.node(), part.name, used);
    if (!index) {
      if (part.is_padding) return true;
      return refuse(place, "the field " + part.name + " is missing");
    }
    ++used;
    const DocumentNode& node = place.node();
    return encode(part, Place(place, node.keys[*index].text, node.items[*index]),
                  part_of(bytes, part));
  }

  bool member_of_union(Layout& layout, const Place& place, Bytes bytes, std::size_t& used) {
    std::optional<std::size_t> chosen;
    for (std::size_t i = 0; i < layout.parts.size(); ++i) {
      if (!is_given(layout.parts[i], place.node())) continue;
      if (chosen)
        return refuse(place, "of a union only one member can be given: " + names_of(layout));
      chosen = i;
    }
    if (!chosen) return refuse(place, "expected one of " + names_of(layout));
    layout.shown_member = static_cast<std::uint32_t>(*chosen);
    return member(layout.parts[*chosen], place, bytes, used);
  }

  static bool is_given(const Layout& part, const DocumentNode& node) {
    if (!part.name.empty()) return find(node, part.name, 0).has_value();
    return std::ranges::any_of(part.parts,
                               [&](const Layout& inner) { return is_given(inner, node); });
  }

  static std::optional<std::size_t> find(const DocumentNode& node, std::string_view name,
                                         std::size_t likely) {
    if (likely < node.keys.size() && node.keys[likely].text == name) return likely;
    const auto found = std::ranges::find(node.keys, name, &policy::DocumentKey::text);
    if (found == node.keys.end()) return std::nullopt;
    return static_cast<std::size_t>(found - node.keys.begin());
  }

  bool refuse_others(const Layout& layout, const Place& place) {
    policy::Fields fields(errors_, place);
    std::vector<std::string_view> names;
    collect_names(layout, names);
    for (const std::string_view name : names) static_cast<void>(fields.optional(name));
    fields.finish();
    return false;
  }

  static constexpr std::size_t kMaxNames = 32;

  SpecErrors& errors_;
};

// --- bytes to documents

std::string hex_text(ConstBytes bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<unsigned>(b) >> 4];
    text += kDigits[static_cast<unsigned>(b) & 0xf];
  }
  return text;
}

Json list_of_bytes(ConstBytes bytes) {
  Json list = Json::array();
  for (const std::byte b : bytes) list.push_back(static_cast<unsigned>(b));
  return list;
}

Json decode_address(ConstBytes bytes) {
  if (bytes.size() == kV4Size) {
    std::array<std::uint8_t, kV4Size> octets{};
    std::memcpy(octets.data(), bytes.data(), octets.size());
    return IpAddress::from_v4(octets).to_string();
  }
  IpAddress::Bytes octets{};
  std::memcpy(octets.data(), bytes.data(), octets.size());
  return IpAddress(octets).to_string();
}

bool is_plain(char c) {
  return c >= ' ' && c <= '~';
}

Json decode_text(ConstBytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.resize(text.find_last_not_of('\0') + 1);
  if (std::ranges::all_of(text, is_plain)) return text;
  // Beyond ASCII only what is UTF-8 can be written as JSON.
  Json quoted = text;
  try {
    if (Json::parse(quoted.dump()) == quoted) return quoted;
  } catch (const Json::exception&) {
  }
  return list_of_bytes(bytes);
}

Json decode_enum(const Layout& layout, ConstBytes bytes) {
  const Integer integer = load_integer(layout, bytes);
  const auto bits = static_cast<std::uint64_t>(to_bits(integer, 64));
  for (const Layout::Enumerator& known : layout.enumerators)
    if (static_cast<std::uint64_t>(known.value) == bits) return known.name;
  return integer_json(integer);
}

Json decode_boolean(const Layout& layout, ConstBytes bytes) {
  const Integer integer = load_integer(layout, bytes);
  return integer.magnitude <= 1 ? Json(integer.magnitude == 1) : integer_json(integer);
}

void decode_members(const Layout& layout, ConstBytes bytes, Json& object);

// The member of a union that says everything: outside of it the bytes are zero. The one written
// last if it does, else the first that does, else the largest.
const Layout& member_to_show(const Layout& layout, ConstBytes bytes) {
  const auto says_all = [&](const Layout& member) {
    return is_zero(bytes.first(member.offset)) &&
           is_zero(bytes.subspan(member.offset + member.size));
  };
  const Layout& written = layout.parts[layout.shown_member];
  if (says_all(written)) return written;
  const auto found = std::ranges::find_if(layout.parts, says_all);
  return found != layout.parts.end() ? *found
                                     : *std::ranges::max_element(layout.parts, {}, &Layout::size);
}

void decode_member(const Layout& part, ConstBytes bytes, Json& object) {
  const ConstBytes own = part_of(bytes, part);
  if (part.name.empty()) return decode_members(part, own, object);
  if (part.is_padding && is_zero(own)) return;
  object[part.name] = decode(part, own);
}

void decode_members(const Layout& layout, ConstBytes bytes, Json& object) {
  if (layout.kind == Kind::kUnion)
    return decode_member(member_to_show(layout, bytes), bytes, object);
  for (const Layout& part : layout.parts) decode_member(part, bytes, object);
}

Json decode_array(const Layout& layout, ConstBytes bytes) {
  const Layout& element = layout.parts.front();
  Json list = Json::array();
  for (std::size_t i = 0; i < layout.count; ++i)
    list.push_back(decode(element, bytes.subspan(i * element.size, element.size)));
  return list;
}

}  // namespace

bool encode(Layout& layout, const Place& place, SpecErrors& errors, Bytes bytes) {
  std::ranges::fill(bytes, std::byte{0});
  return Encoder(errors).encode(layout, place, bytes);
}

Json decode(const Layout& layout, ConstBytes bytes) {
  switch (layout.kind) {
    case Kind::kInteger:
      return integer_json(load_integer(layout, bytes));
    case Kind::kBoolean:
      return decode_boolean(layout, bytes);
    case Kind::kEnum:
      return decode_enum(layout, bytes);
    case Kind::kAddress:
      return decode_address(bytes);
    case Kind::kText:
      return decode_text(bytes);
    case Kind::kBytes:
      return hex_text(bytes);
    case Kind::kArray:
      return decode_array(layout, bytes);
    case Kind::kStruct:
    case Kind::kUnion:
      break;
  }
  Json object = Json::object();
  decode_members(layout, bytes, object);
  return object;
}

}  // namespace mapgate::schema
