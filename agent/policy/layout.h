// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mapgate::policy {

// How the bytes of a map's key or value are laid out, and how each part is written in a document.
// docs/spec.md describes the forms. A value: it comes from the spec, or from a map's BTF.
struct Layout {
  enum class Kind : std::uint8_t {
    kInteger,
    kBoolean,
    kEnum,
    kAddress,  // 4 or 16 bytes in network order, written as text
    kText,     // an array of char, the rest of it zero
    kBytes,    // anything, in hex
    kArray,
    kStruct,
    kUnion,
  };
  struct Enumerator {
    std::string name;
    std::int64_t value = 0;  // the bits of a uint64_t if the enum is unsigned

    friend bool operator==(const Enumerator&, const Enumerator&) = default;
  };

  Kind kind = Kind::kBytes;
  std::uint32_t size = 0;    // bytes
  std::uint32_t offset = 0;  // bytes, within the struct or union that it is a part of
  // Of a bitfield: where its first bit is from `offset` on, and how many it has; 0 of all else.
  std::uint8_t bit_offset = 0;
  std::uint8_t bit_size = 0;
  bool is_signed = false;   // of integers and enums
  bool big_endian = false;  // of integers
  bool is_padding = false;  // by its name: may be left out, and is when it is zero
  std::string name;         // of a field; empty: its fields are written as its parent's
  std::vector<Enumerator> enumerators;
  std::vector<Layout> parts;  // the fields; of an array one, which stands for all
  std::uint32_t count = 0;    // of an array
  // Of a union: the member that it is shown as, if the bytes allow. The last one written.
  std::uint32_t shown_member = 0;

  friend bool operator==(const Layout&, const Layout&) = default;
};

inline constexpr std::uint32_t kMaxLayoutBytes = 65535;
inline constexpr std::size_t kMaxLayoutParts = 4096;

// What a hint says of a part whose type does not say enough.
enum class LayoutHint : std::uint8_t { kAddress, kBigEndian, kText, kHex };

}  // namespace mapgate::policy
