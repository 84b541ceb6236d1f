// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mapgate::dns {

// Unpredictable numbers: what keeps an attacker off the path from guessing a query's id and port
// (RFC 5452).
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  [[nodiscard]] virtual std::uint16_t next16() = 0;
};

// From getrandom(2), some at a time. Not thread-safe.
class SystemRandom final : public RandomSource {
 public:
  [[nodiscard]] std::uint16_t next16() override;

 private:
  std::array<std::uint16_t, 128> numbers_{};
  std::size_t left_ = 0;
};

}  // namespace mapgate::dns
