// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/btf.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/policy/document.h"
#include "agent/policy/layout.h"
#include "agent/policy/spec_fields.h"
#include "agent/schema/btf_layout.h"
#include "agent/schema/codec.h"

namespace mapgate::schema::test {

// The layout of a type of types.bpf.c.
inline policy::Layout layout_of(const char* name, unsigned kind = BTF_KIND_STRUCT) {
  struct Free {
    void operator()(btf* types) const { btf__free(types); }
  };
  const std::unique_ptr<btf, Free> types(btf__parse_elf(MAPGATE_TYPES_OBJECT, nullptr));
  if (!types) {
    ADD_FAILURE() << "no BTF in " MAPGATE_TYPES_OBJECT;
    return {};
  }
  const int id = btf__find_by_name_kind(types.get(), name, kind);
  auto layout = layout_of_type(*types, static_cast<std::uint32_t>(id));
  if (layout) return *layout;
  ADD_FAILURE() << name << ": " << layout.error();
  return {};
}

struct Encoded {
  std::vector<std::byte> bytes;  // empty after a fault
  std::vector<std::string> faults;
};

inline Encoded encode_json(policy::Layout& layout, std::string_view json) {
  const auto document = policy::parse_json(json);
  if (!document) return {{}, {document.error().reason}};
  policy::SpecErrors errors("test.json");
  Encoded result{std::vector<std::byte>(layout.size, std::byte{0xff}), {}};
  const bool sound =
      encode(layout, policy::Place("/maps/0/entries/3/key", *document), errors, result.bytes);
  EXPECT_EQ(sound, errors.empty());
  for (const auto& error : std::move(errors).finish()) result.faults.push_back(error.to_string());
  if (!sound) result.bytes.clear();
  return result;
}

// The bytes as the struct that the BPF program has.
template <typename Struct>
Struct encode_as(const char* name, std::string_view json) {
  policy::Layout layout = layout_of(name);
  const Encoded encoded = encode_json(layout, json);
  for (const std::string& fault : encoded.faults) ADD_FAILURE() << fault;
  Struct result{};
  if (encoded.bytes.size() != sizeof result) {
    ADD_FAILURE() << encoded.bytes.size() << " bytes instead of " << sizeof result;
    return result;
  }
  std::memcpy(&result, encoded.bytes.data(), sizeof result);
  return result;
}

}  // namespace mapgate::schema::test
