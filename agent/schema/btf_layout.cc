// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/btf_layout.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "agent/policy/layout_text.h"

namespace mapgate::schema {
namespace {

using policy::Layout;
using Kind = Layout::Kind;
using Result = std::expected<Layout, std::string>;

constexpr unsigned kMaxDepth = 16;

struct FreeBtf {
  void operator()(btf* types) const { btf__free(types); }
};

// A type behind its typedefs and qualifiers, and what those say.
struct Resolved {
  const btf_type* type = nullptr;
  bool big_endian = false;
};

bool is_big_endian_name(std::string_view name) {
  return name == "__be16" || name == "__be32" || name == "__be64";
}

// Fields that hold an address where their type alone leaves it open.
bool is_address_name(std::string_view name) {
  static constexpr auto kEnds =
      std::to_array<std::string_view>({"addr", "address", "ip", "ip4", "ip6", "ipv4", "ipv6"});
  return std::ranges::any_of(kEnds, [&](std::string_view end) {
    if (!name.ends_with(end)) return false;
    const std::string_view before = name.substr(0, name.size() - end.size());
    // "saddr" and "daddr" are the kernel's own names.
    return before.empty() || before.ends_with('_') || before == "s" || before == "d";
  });
}

class BtfReader {
 public:
  explicit BtfReader(const btf& types) : types_(types) {}

  Result read(std::uint32_t id, unsigned depth = 0) {
    if (depth > kMaxDepth) return std::unexpected("the type is too deep");
    if (++parts_ > policy::kMaxLayoutParts) return std::unexpected("the type has too many parts");
    const std::int64_t size = btf__resolve_size(&types_, id);
    if (size < 0 || size > policy::kMaxLayoutBytes)
      return std::unexpected("the type has no size that a map can have");
    const auto resolved = resolve(id);
    if (!resolved) return std::unexpected("the type does not exist");
    Layout layout = hex_layout(static_cast<std::uint32_t>(size));
    const btf_type* type = resolved->type;
    if (btf_is_int(type)) return integer(*resolved, std::move(layout));
    if (btf_is_any_enum(type)) return enumeration(type, std::move(layout));
    if (btf_is_array(type)) return array(type, std::move(layout), depth);
    if (btf_is_composite(type)) return composite(type, std::move(layout), depth);
    return layout;
  }

 private:
  [[nodiscard]] std::string_view name_at(std::uint32_t offset) const {
    const char* name = btf__name_by_offset(&types_, offset);
    return name == nullptr ? std::string_view() : name;
  }

  [[nodiscard]] std::optional<Resolved> resolve(std::uint32_t id) const {
    Resolved result;
    for (unsigned steps = 0; steps <= kMaxDepth; ++steps) {
      result.type = btf__type_by_id(&types_, id);
      if (result.type == nullptr) return std::nullopt;
      if (!btf_is_mod(result.type) && !btf_is_typedef(result.type)) return result;
      if (btf_is_typedef(result.type) && is_big_endian_name(name_at(result.type->name_off)))
        result.big_endian = true;
      id = result.type->type;
    }
    return std::nullopt;
  }

  [[nodiscard]] static Result integer(const Resolved& resolved, Layout layout) {
    const unsigned encoding = btf_int_encoding(resolved.type);
    if (layout.size > sizeof(__uint128_t)) return layout;
    layout.kind = (encoding & BTF_INT_BOOL) != 0 ? Kind::kBoolean : Kind::kInteger;
    layout.is_signed = (encoding & BTF_INT_SIGNED) != 0;
    layout.big_endian = resolved.big_endian;
    // How compilers described bitfields before BTF had a flag for them.
    const unsigned bits = btf_int_bits(resolved.type);
    if (bits != 0 && bits < layout.size * 8) {
      layout.bit_size = static_cast<std::uint8_t>(bits);
      layout.bit_offset = btf_int_offset(resolved.type);
    }
    return layout;
  }

  [[nodiscard]] Result enumeration(const btf_type* type, Layout layout) const {
    layout.kind = Kind::kEnum;
    layout.is_signed = btf_kflag(type);
    const std::span<const struct btf_enum> narrow(btf_enum(type),
                                                  btf_is_enum(type) ? btf_vlen(type) : 0);
    for (const auto& value : narrow)
      layout.enumerators.push_back({std::string(name_at(value.name_off)), value.val});
    const std::span<const struct btf_enum64> wide(btf_enum64(type),
                                                  btf_is_enum64(type) ? btf_vlen(type) : 0);
    for (const auto& value : wide)
      layout.enumerators.push_back({std::string(name_at(value.name_off)),
                                    static_cast<std::int64_t>(btf_enum64_value(&value))});
    // An older BTF has no flag for it: a negative value tells.
    if (btf_is_enum(type))
      layout.is_signed = layout.is_signed || std::ranges::any_of(layout.enumerators, [](auto& e) {
                           return e.value < 0;
                         });
    return layout;
  }

  [[nodiscard]] bool is_char(std::uint32_t id) const {
    const auto resolved = resolve(id);
    if (!resolved || !btf_is_int(resolved->type) || resolved->type->size != 1) return false;
    return name_at(resolved->type->name_off) == "char" ||
           (btf_int_encoding(resolved->type) & BTF_INT_CHAR) != 0;
  }

  Result array(const btf_type* type, Layout layout, unsigned depth) {
    const struct btf_array* shape = btf_array(type);
    if (layout.size == 0) return layout;
    if (is_char(shape->type)) {
      layout.kind = Kind::kText;
      return layout;
    }
    auto element = read(shape->type, depth + 1);
    if (!element) return element;
    layout.kind = Kind::kArray;
    layout.count = shape->nelems;
    layout.parts.push_back(std::move(*element));
    return layout;
  }

  Result composite(const btf_type* type, Layout layout, unsigned depth) {
    const std::string_view name = name_at(type->name_off);
    if ((name == "in_addr" && layout.size == 4) || (name == "in6_addr" && layout.size == 16)) {
      layout.kind = Kind::kAddress;
      return layout;
    }
    layout.kind = btf_is_union(type) ? Kind::kUnion : Kind::kStruct;
    for (std::uint32_t i = 0; i < btf_vlen(type); ++i) {
      auto part = member(type, i, depth);
      if (!part) return part;
      // A flexible array at the end has no bytes of its own.
      if (part->size == 0) continue;
      if (part->offset + part->size > layout.size)
        return std::unexpected("the type has a member outside of it");
      layout.parts.push_back(std::move(*part));
    }
    if (layout.parts.empty()) layout.kind = Kind::kBytes;
    return layout;
  }

  Result member(const btf_type* type, std::uint32_t index, unsigned depth) {
    const btf_member& raw = btf_members(type)[index];
    auto part = read(raw.type, depth + 1);
    if (!part) return part;
    part->name = name_at(raw.name_off);
    part->is_padding = policy::is_padding_name(part->name);
    const std::uint32_t first_bit = btf_member_bit_offset(type, index) + part->bit_offset;
    const std::uint32_t bits = btf_member_bitfield_size(type, index);
    if (bits != 0) part->bit_size = static_cast<std::uint8_t>(bits);
    part->offset = first_bit / 8;
    if (part->bit_size != 0) {
      part->bit_offset = first_bit % 8;
      part->size = (part->bit_offset + part->bit_size + 7U) / 8;
    } else if (holds_address(*part)) {
      part->kind = Kind::kAddress;
      part->parts.clear();
      part->count = 0;
    }
    // Only what has names of its own can go without one.
    if (part->name.empty() && part->kind != Kind::kStruct && part->kind != Kind::kUnion)
      part->size = 0;
    return part;
  }

  // By its name, and a type that addresses have: __be32, __u8[4], __u8[16], __be32[4], __u32[4].
  static bool holds_address(const Layout& part) {
    if (!is_address_name(part.name)) return false;
    if (part.kind == Kind::kInteger) return part.size == 4 && part.big_endian;
    if (part.kind != Kind::kArray || part.parts.front().kind != Kind::kInteger) return false;
    const std::uint32_t element = part.parts.front().size;
    return (part.size == 4 && element == 1) || (part.size == 16 && (element == 1 || element == 4));
  }

  const btf& types_;
  std::size_t parts_ = 0;
};

Layout layout_or_hex(const btf& types, std::uint32_t id, std::uint32_t size) {
  if (id == 0) return hex_layout(size);
  auto layout = layout_of_type(types, id);
  return layout && layout->size == size ? std::move(*layout) : hex_layout(size);
}

}  // namespace

Layout hex_layout(std::uint32_t size) {
  return {.kind = Kind::kBytes, .size = size};
}

Result layout_of_type(const btf& types, std::uint32_t type_id) {
  return BtfReader(types).read(type_id);
}

MapLayouts layouts_of_types(const btf& types, std::uint32_t key_type, std::uint32_t key_size,
                            std::uint32_t value_type, std::uint32_t value_size) {
  return {layout_or_hex(types, key_type, key_size), layout_or_hex(types, value_type, value_size)};
}

std::expected<MapLayouts, std::string> layouts_of_map(int fd) {
  bpf_map_info info{};
  std::uint32_t size = sizeof info;
  if (const int error = -bpf_obj_get_info_by_fd(fd, &info, &size); error != 0)
    return std::unexpected(std::string("cannot read what the map is: ") + std::strerror(error));
  if (info.btf_id == 0) return MapLayouts{hex_layout(info.key_size), hex_layout(info.value_size)};
  const std::unique_ptr<btf, FreeBtf> types(btf__load_from_kernel_by_id(info.btf_id));
  if (!types)
    return std::unexpected(std::string("cannot read the map's BTF: ") + std::strerror(errno));
  return layouts_of_types(*types, info.btf_key_type_id, info.key_size, info.btf_value_type_id,
                          info.value_size);
}

}  // namespace mapgate::schema
