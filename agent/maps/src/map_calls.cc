// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_calls.h>

#include <system_error>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

namespace mapgate::maps {

unsigned KernelMapCalls::possible_cpus() {
  const int count = libbpf_num_possible_cpus();
  if (count < 1) throw std::system_error(-count, std::generic_category(), "possible CPUs");
  return static_cast<unsigned>(count);
}

int KernelMapCalls::update(int fd, const void* key, const void* value) {
  return -bpf_map_update_elem(fd, key, value, BPF_ANY);
}

int KernelMapCalls::remove(int fd, const void* key) {
  return -bpf_map_delete_elem(fd, key);
}

int KernelMapCalls::lookup(int fd, const void* key, void* value) {
  return -bpf_map_lookup_elem(fd, key, value);
}

int KernelMapCalls::next_key(int fd, const void* key, void* next) {
  return -bpf_map_get_next_key(fd, key, next);
}

int KernelMapCalls::update_batch(int fd, const void* keys, const void* values,
                                 std::uint32_t& count) {
  return -bpf_map_update_batch(fd, keys, values, &count, nullptr);
}

int KernelMapCalls::remove_batch(int fd, const void* keys, std::uint32_t& count) {
  return -bpf_map_delete_batch(fd, keys, &count, nullptr);
}

int KernelMapCalls::lookup_batch(int fd, const void* cursor, void* next_cursor, void* keys,
                                 void* values, std::uint32_t& count) {
  // libbpf 1.1 does not write through the cursor it takes, but its parameter is not const.
  return -bpf_map_lookup_batch(fd, const_cast<void*>(cursor), next_cursor, keys, values, &count,
                               nullptr);
}

}  // namespace mapgate::maps
