/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The yardstick for the egress program: one lookup in the same hash with the same key, and nothing
 * else. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/abi.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1);
  __type(key, struct mg_address_key);
  __type(value, struct mg_port_sets);
} mg_addresses SEC(".maps");

/* The words of the key; a struct mg_address_key. */
const volatile __u32 looked_up[sizeof(struct mg_address_key) / sizeof(__u32)] = {};

SEC("cgroup_skb/egress")
int bare_lookup(struct __sk_buff* skb __attribute__((unused))) {
  __u32 key[sizeof(looked_up) / sizeof(__u32)];
  for (int i = 0; i < (int)(sizeof(looked_up) / sizeof(__u32)); i++) key[i] = looked_up[i];
  struct mg_port_sets* sets = bpf_map_lookup_elem(&mg_addresses, key);
  return sets ? 1 : 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
