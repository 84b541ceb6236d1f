// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mapgate::maps {

// The system calls on the elements of a map, so that tests can answer in the kernel's place. Each
// returns 0 or the errno, positive. Keys and values are as large as the map says; batches are
// arrays of them without gaps.
//
// `count` of a batch call holds how many elements are passed, and after it what the kernel left
// there: on success and on errors of one element the number done, on other errors anything at all.
class MapCalls {
 public:
  virtual ~MapCalls() = default;

  // How many CPUs there may ever be; not below 1. A value of a per-CPU map is as many values, each
  // at a multiple of 8 bytes.
  [[nodiscard]] virtual unsigned possible_cpus() = 0;

  virtual int update(int fd, const void* key, const void* value) = 0;
  virtual int remove(int fd, const void* key) = 0;
  virtual int lookup(int fd, const void* key, void* value) = 0;
  // A null `key` asks for the first; ENOENT is the end. A key that is not there also gives the
  // first.
  virtual int next_key(int fd, const void* key, void* next) = 0;

  virtual int update_batch(int fd, const void* keys, const void* values, std::uint32_t& count) = 0;
  virtual int remove_batch(int fd, const void* keys, std::uint32_t& count) = 0;
  // Reads on from `cursor` (null: from the start) and leaves in `next_cursor` where to go on; both
  // are as large as a key, and at least 4 bytes. ENOENT is the end, and `count` is valid then.
  virtual int lookup_batch(int fd, const void* cursor, void* next_cursor, void* keys, void* values,
                           std::uint32_t& count) = 0;
};

// The kernel, through libbpf.
class KernelMapCalls final : public MapCalls {
 public:
  // Throws std::system_error if the kernel does not say.
  [[nodiscard]] unsigned possible_cpus() override;
  int update(int fd, const void* key, const void* value) override;
  int remove(int fd, const void* key) override;
  int lookup(int fd, const void* key, void* value) override;
  int next_key(int fd, const void* key, void* next) override;
  int update_batch(int fd, const void* keys, const void* values, std::uint32_t& count) override;
  int remove_batch(int fd, const void* keys, std::uint32_t& count) override;
  int lookup_batch(int fd, const void* cursor, void* next_cursor, void* keys, void* values,
                   std::uint32_t& count) override;
};

}  // namespace mapgate::maps
