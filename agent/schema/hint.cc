// SPDX-License-Identifier: Apache-2.0
#include "agent/schema/hint.h"

#include <algorithm>

namespace mapgate::schema {
namespace {

using policy::Layout;
using policy::LayoutHint;
using Kind = Layout::Kind;
using Result = std::expected<void, std::string>;

// Keeps where the part lies and what it is called.
void become(Layout& part, Kind kind) {
  part.kind = kind;
  part.parts.clear();
  part.enumerators.clear();
  part.count = 0;
}

// Of the anonymous members too, whose fields are written as the parent's.
Layout* find_field(Layout& layout, std::string_view name) {
  if (layout.kind != Kind::kStruct && layout.kind != Kind::kUnion) return nullptr;
  for (Layout& part : layout.parts) {
    if (part.name == name) return &part;
    if (!part.name.empty()) continue;
    if (Layout* found = find_field(part, name)) return found;
  }
  return nullptr;
}

bool is_array_of_bytes(const Layout& part) {
  return part.kind == Kind::kArray && part.parts.front().size == 1;
}

Result set_big_endian(Layout& part) {
  Layout* target = &part;
  while (target->kind == Kind::kArray) target = &target->parts.front();
  if (target->kind != Kind::kInteger || target->bit_size != 0)
    return std::unexpected("bigEndian is for integers");
  target->big_endian = true;
  return {};
}

Result set_address(Layout& part) {
  if (part.bit_size == 0 && (part.size == 4 || part.size == 16)) {
    become(part, Kind::kAddress);
    return {};
  }
  if (part.kind == Kind::kArray) return set_address(part.parts.front());
  return std::unexpected("an address has 4 or 16 bytes, not " + std::to_string(part.size));
}

Result set(Layout& part, LayoutHint hint) {
  switch (hint) {
    case LayoutHint::kBigEndian:
      return set_big_endian(part);
    case LayoutHint::kAddress:
      return set_address(part);
    case LayoutHint::kText:
      if (!is_array_of_bytes(part) && part.kind != Kind::kText && part.kind != Kind::kBytes)
        return std::unexpected("text is for arrays of bytes");
      become(part, Kind::kText);
      return {};
    case LayoutHint::kHex:
      if (part.bit_size != 0) return std::unexpected("hex is not for bitfields");
      become(part, Kind::kBytes);
      return {};
  }
  return {};
}

}  // namespace

Result apply_hint(Layout& layout, std::string_view path, LayoutHint hint) {
  if (path.empty()) return set(layout, hint);
  const std::size_t dot = std::min(path.find('.'), path.size());
  const std::string_view rest = path.substr(std::min(dot + 1, path.size()));
  Layout* container = &layout;
  while (container->kind == Kind::kArray) container = &container->parts.front();
  Layout* field = find_field(*container, path.substr(0, dot));
  if (field == nullptr)
    return std::unexpected("there is no field \"" + std::string(path.substr(0, dot)) + "\"");
  return apply_hint(*field, rest, hint);
}

}  // namespace mapgate::schema
