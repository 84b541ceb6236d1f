// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>

#include <linux/bpf.h>

#include <mapgate/maps/map_error.h>

namespace mapgate::maps {

// What the kernel says about a map; sizes in bytes.
struct MapInfo {
  std::uint32_t id = 0;
  bpf_map_type type = BPF_MAP_TYPE_UNSPEC;
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  std::uint32_t max_entries = 0;
  std::uint32_t flags = 0;  // BPF_F_*
  std::string name;         // at most 15 characters
};

// So made that one can take the place of the other; ids and names aside.
[[nodiscard]] bool are_made_alike(const MapInfo& a, const MapInfo& b);
// "hash, keys of 4 and values of 8 bytes, 16 entries, flags 0x1"
[[nodiscard]] std::string describe_map(const MapInfo& info);

// Whether `path`, or the nearest parent of it that exists, lies on one: pins can be nowhere else.
[[nodiscard]] bool is_bpf_filesystem(const std::string& path);

// Owns a file descriptor of a BPF map. A pin outlives it. Not thread-safe; move-only.
class Map {
 public:
  // `info.id` is not looked at. Maps of maps need an `inner` map as a pattern for those to come; it
  // need not stay. Needs CAP_BPF.
  [[nodiscard]] static std::expected<Map, MapError> create(const MapInfo& info,
                                                           const Map* inner = nullptr);
  // ENOENT: nothing is pinned at `path`.
  [[nodiscard]] static std::expected<Map, MapError> open_pin(const std::string& path);
  // ENOENT: there is no map `id` any more. Needs CAP_SYS_ADMIN.
  [[nodiscard]] static std::expected<Map, MapError> open_id(std::uint32_t id);
  // Duplicates `fd`, which stays the caller's (a skeleton's, say).
  [[nodiscard]] static std::expected<Map, MapError> from_fd(int fd);

  // Takes over `fd`, whose `info` the caller vouches for; `pin_path` may be empty.
  Map(int fd, MapInfo info, std::string pin_path);
  Map(Map&& other) noexcept;
  Map& operator=(Map&& other) noexcept;
  ~Map();

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const MapInfo& info() const { return info_; }
  // Where it was opened or last pinned; empty if neither.
  [[nodiscard]] const std::string& pin_path() const { return pin_path_; }

  // EEXIST: the path is taken.
  [[nodiscard]] std::expected<void, MapError> pin(const std::string& path);
  // Like pin, but what was pinned there is replaced, with no moment in which the path does not
  // exist.
  [[nodiscard]] std::expected<void, MapError> replace_pin(const std::string& path);
  // Removes the pin at pin_path().
  [[nodiscard]] std::expected<void, MapError> unpin();
  // An error unless the map pinned at `path` is this one: a program that reads one map while the
  // agent writes another of the same name is a fault that looks like no fault at all.
  [[nodiscard]] std::expected<void, MapError> check_pin(const std::string& path) const;

  // Forgets the descriptor without closing it: after EBADF the number may be somebody else's by
  // now.
  void abandon() { fd_ = -1; }

 private:
  int fd_ = -1;
  MapInfo info_;
  std::string pin_path_;
};

}  // namespace mapgate::maps
