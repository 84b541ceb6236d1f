/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tells the cookie of a socket's network namespace where SO_NETNS_COOKIE does not (before Linux
 * 5.14). */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* The cookie of the socket that is asked about, to that of its network namespace. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1);
  __type(key, __u64);
  __type(value, __u64);
} mg_probed SEC(".maps");

SEC("cgroup/connect4")
int mg_probe(struct bpf_sock_addr* ctx) {
  __u64 socket = bpf_get_socket_cookie(ctx);
  __u64* network = bpf_map_lookup_elem(&mg_probed, &socket);
  if (network) *network = bpf_get_netns_cookie(ctx);
  return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
