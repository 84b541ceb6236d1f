// SPDX-License-Identifier: Apache-2.0
// Uses the headers of mapgate::maps and links it; the kernel is tested elsewhere.
#include <cstdint>

#include <mapgate/maps/row.h>

int main() {
  using namespace mapgate::maps;
  const std::uint32_t key = 7;
  return RowKeyHash{}(RowKey::of(0, key)) == RowKeyHash{}(RowKey::of(1, key)) ? 1 : 0;
}
