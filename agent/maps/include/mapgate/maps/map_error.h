// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <linux/bpf.h>

#include <mapgate/reconciler/types.h>

namespace mapgate::maps {

// What was asked of a map when an error came back.
enum class MapAction : std::uint8_t { kOpen, kWrite, kDelete, kRead };

// The kernel's own errno of "this map type has no such call"; no libc names it.
inline constexpr int kErrnoNotSupported = 524;

// Its elements are numbered, all there from the start, and cannot be deleted.
[[nodiscard]] bool is_array(bpf_map_type type);
[[nodiscard]] bool is_per_cpu(bpf_map_type type);
[[nodiscard]] bool is_map_of_maps(bpf_map_type type);
// Its keys are indices below max_entries.
[[nodiscard]] bool has_indices(bpf_map_type type);

// What the errno of a failed action means for a row. An errno that is not known to be permanent is
// transient.
[[nodiscard]] reconciler::ErrorClass classify(int error, MapAction action, bpf_map_type type);

[[nodiscard]] std::string describe_errno(int error);
[[nodiscard]] std::string describe_type(bpf_map_type type);

// Why a map could not be opened, made, pinned or used.
struct MapError {
  std::string step;    // what was tried, e.g. "open pin"
  std::string name;    // the map's name or the pin's path
  int code = 0;        // errno, positive
  std::string reason;  // the errno's text, or more

  [[nodiscard]] std::string text() const;  // one line: step, name and reason
};

}  // namespace mapgate::maps
