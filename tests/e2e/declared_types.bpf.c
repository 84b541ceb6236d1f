// SPDX-License-Identifier: Apache-2.0
// Maps of a program that is not mapgate's, for what their BTF says.
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

enum action { ACTION_PASS, ACTION_DROP };

struct flow_key {
  __be32 saddr;
  __be16 port;
  __u8 protocol;
};

struct prefix_key {
  __u32 prefixlen;
  __u8 addr[4];
};

struct verdict {
  enum action action;
  char comment[12];
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 64);
  __type(key, struct flow_key);
  __type(value, struct verdict);
} flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(max_entries, 1024);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, struct prefix_key);
  __type(value, struct verdict);
} prefixes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 4);
  __type(key, __u32);
  __type(value, __u64);
} limits SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1100000);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, __u32);
  __type(value, __u32);
} big SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __uint(max_entries, 64);
  __type(key, struct flow_key);
  __type(value, struct verdict);
} cpu_flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 4);
  __type(key, __u32);
  __type(value, __u32);
} shares SEC(".maps");

// Changes an element on the CPU that it runs on.
SEC("socket")
int add_share(struct __sk_buff* packet) {
  (void)packet;
  const __u32 key = 1;
  __u32* share = bpf_map_lookup_elem(&shares, &key);
  if (share) ++*share;
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
