// SPDX-License-Identifier: Apache-2.0
// A layout on the first line, behind it a value: what the layout takes reads back as what makes the
// same bytes, and any bytes read as something that the layout takes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "agent/policy/layout_text.h"
#include "agent/schema/codec.h"

namespace {

using namespace mapgate;
using policy::Layout;

void require(bool condition) {
  if (!condition) std::abort();
}

// The bytes of the value, or nothing.
std::vector<std::byte> encode(Layout& layout, std::string_view json) {
  const auto document = policy::parse_json(json);
  if (!document) return {};
  policy::SpecErrors errors("fuzz");
  std::vector<std::byte> bytes(layout.size, std::byte{0xff});
  const bool sound = schema::encode(layout, policy::Place(*document), errors, bytes);
  require(sound == errors.empty());
  return sound ? bytes : std::vector<std::byte>();
}

void read_back(Layout& layout, std::span<const std::byte> bytes) {
  const auto shown = schema::decode(layout, bytes).dump();
  const std::vector<std::byte> again = encode(layout, shown);
  require(again.size() == bytes.size());
  // Padding aside, which the second time around is zero.
  require(schema::decode(layout, again).dump() == shown);
  require(encode(layout, schema::decode(layout, again).dump()) == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find('\n'), size);
  const auto document = policy::parse_json(text.substr(0, end));
  if (!document) return 0;
  policy::SpecErrors errors("fuzz");
  auto layout = policy::read_layout(errors, policy::Place(*document));
  require(layout.has_value() == errors.empty());
  if (!layout) return 0;
  const std::string_view value = text.substr(std::min(end + 1, size));
  const std::vector<std::byte> bytes = encode(*layout, value);
  if (!bytes.empty()) read_back(*layout, bytes);
  std::vector<std::byte> any(layout->size);
  std::ranges::transform(value.substr(0, any.size()), any.begin(),
                         [](char c) { return static_cast<std::byte>(c); });
  read_back(*layout, any);
  return 0;
}
