/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Judges connect() and sendmsg() by who calls. cgroup hooks run for the cgroup of a socket's
 * creator, so a workload's own programs do not see what it does with a socket that it was handed.
 * These are attached to the root cgroup, see every call on the machine, and judge those by a task
 * of a workload on a socket from elsewhere. Like an established TCP connection, a datagram socket
 * that was connected elsewhere keeps its peer. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/abi.h"
#include "bpf/calls.bpf.h"

#define MAX_CGROUP_DEPTH 16

/* The innermost workload that the current task is in; 0 if none. */
static __always_inline __u32 task_workload(void) {
  __u32 innermost = 0;
  for (int level = 1; level <= MAX_CGROUP_DEPTH; level++) {
    __u64 id = bpf_get_current_ancestor_cgroup_id(level);
    if (!id) break;
    struct mg_cgroup* cgroup = bpf_map_lookup_elem(&mg_cgroups, &id);
    if (cgroup) innermost = cgroup->workload;
  }
  return innermost;
}

/* DNS is not steered: the packets would leave from a cgroup in which nobody tells the proxy about
 * them. */
static __always_inline int handle_foreign_call(struct bpf_sock_addr* ctx, int ipv6, int hook) {
  __u32 workload = task_workload();
  if (take_judged(ctx, workload) || !workload) return PASS;
  return handle_call(ctx, ipv6, hook, workload, 0);
}

SEC("cgroup/connect4")
int mg_guard_connect4(struct bpf_sock_addr* ctx) {
  return handle_foreign_call(ctx, 0, MG_HOOK_CONNECT);
}

SEC("cgroup/connect6")
int mg_guard_connect6(struct bpf_sock_addr* ctx) {
  return handle_foreign_call(ctx, 1, MG_HOOK_CONNECT);
}

SEC("cgroup/sendmsg4")
int mg_guard_sendmsg4(struct bpf_sock_addr* ctx) {
  return handle_foreign_call(ctx, 0, MG_HOOK_SENDMSG);
}

SEC("cgroup/sendmsg6")
int mg_guard_sendmsg6(struct bpf_sock_addr* ctx) {
  return handle_foreign_call(ctx, 1, MG_HOOK_SENDMSG);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
