// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mapgate::policy {

// The small numbers that stand for workloads and for their port sets in the kernel's maps. A number
// keeps its meaning until it is released: that is what makes a reload gap-free, and what lets a new
// daemon read pinned maps. A value type: copy it to try something, compare it, keep it
// (mapgate::state::Store). No thread safety.
class Allocations {
 public:
  struct Workload {
    std::uint32_t id = 0;  // 1..MG_MAX_WORKLOADS-1
    std::map<std::string, std::uint8_t, std::less<>>
        port_sets;  // canonical text -> bit, 0..MG_MAX_PORT_SETS-1

    friend bool operator==(const Workload&, const Workload&) = default;
  };
  using Workloads = std::map<std::string, Workload, std::less<>>;

  // The workload's id; the lowest free one if it has none yet. Empty when all are taken.
  [[nodiscard]] std::optional<std::uint32_t> workload_id(std::string_view workload);
  // The bit of a port set; the lowest free one if it has none yet. Empty when all are taken. The
  // workload has an id.
  [[nodiscard]] std::optional<std::uint8_t> port_set_bit(std::string_view workload,
                                                         std::string_view port_set);

  // Takes an allocation back in as it was stored. False when it contradicts one that is there, or
  // is out of range.
  [[nodiscard]] bool restore_workload(std::string_view workload, std::uint32_t id);
  [[nodiscard]] bool restore_port_set(std::string_view workload, std::string_view port_set,
                                      std::uint8_t bit);

  // Releases everything that `used` does not hold. Only once no row of the kernel's maps uses it.
  void release_unused(const Workloads& used);

  [[nodiscard]] const Workloads& workloads() const { return workloads_; }

  friend bool operator==(const Allocations&, const Allocations&) = default;

 private:
  Workloads workloads_;
};

}  // namespace mapgate::policy
