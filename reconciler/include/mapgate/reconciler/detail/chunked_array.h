// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mapgate::reconciler::detail {

// An array that grows by chunks: elements never move, and growing never copies them.
template <typename T>
class ChunkedArray {
 public:
  static constexpr std::uint32_t kChunk = 4096;

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] T& operator[](std::uint32_t index) {
    return chunks_[index / kChunk][index % kChunk];
  }
  [[nodiscard]] const T& operator[](std::uint32_t index) const {
    return chunks_[index / kChunk][index % kChunk];
  }

  // New elements are value-initialised.
  void grow(std::uint32_t size) {
    while (chunks_.size() * kChunk < size) chunks_.push_back(std::make_unique<T[]>(kChunk));
    if (size > size_) size_ = size;
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::uint32_t size_ = 0;
};

}  // namespace mapgate::reconciler::detail
