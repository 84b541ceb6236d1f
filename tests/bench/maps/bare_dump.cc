// SPDX-License-Identifier: Apache-2.0
// bare_dump PIN: reads a whole map with nothing but bpf_map_lookup_batch, and prints how many
// entries that were and how many seconds it took. What starts of the daemon are compared with.
#include <bpf/bpf.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kBatch = 4096;

int dump(const char* pin) {
  const int fd = bpf_obj_get(pin);
  bpf_map_info info{};
  std::uint32_t size = sizeof info;
  if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size) != 0) {
    std::fprintf(stderr, "bare_dump: %s: %s\n", pin, std::strerror(errno));
    return 1;
  }
  std::vector<char> keys(std::size_t{kBatch} * info.key_size);
  std::vector<char> values(std::size_t{kBatch} * info.value_size);
  std::vector<char> cursor(info.key_size + 4);
  std::vector<char> next(info.key_size + 4);
  std::size_t entries = 0;
  const auto start = std::chrono::steady_clock::now();
  for (bool first = true;; first = false) {
    std::uint32_t count = kBatch;
    const int error = -bpf_map_lookup_batch(fd, first ? nullptr : cursor.data(), next.data(),
                                            keys.data(), values.data(), &count, nullptr);
    if (error != 0 && error != ENOENT) {
      std::fprintf(stderr, "bare_dump: %s: %s\n", pin, std::strerror(error));
      return 1;
    }
    entries += count;
    if (error == ENOENT) break;
    std::swap(cursor, next);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("{\"entries\": %zu, \"seconds\": %.6f}\n", entries, seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bare_dump PIN\n");
    return 1;
  }
  return dump(argv[1]);
}
