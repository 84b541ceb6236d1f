// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>

#include <mapgate/maps/map.h>
#include <mapgate/maps/map_error.h>

namespace mapgate::maps {

// Says that this process, and no other that asks, writes a map. The lock is on the map itself, by
// its id in the kernel: it is the same one through every pin, symbolic link, bind mount, and mount
// or network namespace, needs no file, and ends with the process, however that ends. Advisory: it
// keeps out those who take it too (every mapgated does), not bpftool.
//
// How: all descriptors of BPF maps share one inode of the kernel, on which this holds an open file
// description lock of one byte, at the offset of the map's id. An unprivileged process can lock
// bytes of that inode, but not through a descriptor of the map: where /proc shows all processes
// (the initial process namespace) such a lock does not count.
class MapLock {
 public:
  // EBUSY: another process, or another descriptor of this one, writes it; the error names the pin
  // and, if /proc shows it, the process. A duplicate of `map`'s descriptor is the same writer.
  [[nodiscard]] static std::expected<MapLock, MapError> acquire(const Map& map);

  MapLock(MapLock&& other) noexcept;
  MapLock& operator=(MapLock&& other) noexcept;
  ~MapLock();

  // The map that is locked.
  [[nodiscard]] std::uint32_t map_id() const { return map_id_; }

 private:
  MapLock(int fd, std::uint32_t map_id) : fd_(fd), map_id_(map_id) {}

  int fd_ = -1;
  std::uint32_t map_id_ = 0;
};

}  // namespace mapgate::maps
