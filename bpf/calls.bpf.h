/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* connect() and sendmsg() with an address. */
#ifndef MAPGATE_BPF_CALLS_BPF_H_
#define MAPGATE_BPF_CALLS_BPF_H_

#include "bpf/steering.bpf.h"
#include "bpf/verdict.bpf.h"

#define DENY 0
#define PASS 1

/* In nested cgroups the innermost program runs first, and its note stays. */
static __always_inline void note_judged(struct bpf_sock_addr* ctx, __u32 workload) {
  __u32 zero = 0;
  __u64 cookie = bpf_get_socket_cookie(ctx);
  struct mg_judged* judged = bpf_map_lookup_elem(&mg_judged, &zero);
  if (!judged || judged->cookie == cookie) return;
  judged->cookie = cookie;
  judged->workload = workload;
}

/* Has the workload's own program judged this very call? Clears the note. */
static __always_inline int take_judged(struct bpf_sock_addr* ctx, __u32 workload) {
  __u32 zero = 0;
  struct mg_judged* judged = bpf_map_lookup_elem(&mg_judged, &zero);
  if (!judged || !judged->cookie) return 0;
  int same = judged->workload == workload && judged->cookie == bpf_get_socket_cookie(ctx);
  judged->cookie = 0;
  return same;
}

static __always_inline void read_user_address(struct bpf_sock_addr* ctx, int ipv6, __u8* address) {
  if (ipv6) {
    WORDS(address)[0] = ctx->user_ip6[0];
    WORDS(address)[1] = ctx->user_ip6[1];
    WORDS(address)[2] = ctx->user_ip6[2];
    WORDS(address)[3] = ctx->user_ip6[3];
  } else {
    set_ipv4(address, ctx->user_ip4);
  }
}

static __always_inline void write_user_address(struct bpf_sock_addr* ctx, int ipv6,
                                               const __u8* address, __be16 port) {
  if (ipv6) {
    ctx->user_ip6[0] = WORDS(address)[0];
    ctx->user_ip6[1] = WORDS(address)[1];
    ctx->user_ip6[2] = WORDS(address)[2];
    ctx->user_ip6[3] = WORDS(address)[3];
  } else {
    ctx->user_ip4 = WORDS(address)[3];
  }
  ctx->user_port = port;
}

static __always_inline void steer_call(struct bpf_sock_addr* ctx, int ipv6, struct destination* to,
                                       __be16 port) {
  __u8 loopback[16] __attribute__((aligned(4)));
  if (is_ipv4(to->key.address)) {
    set_ipv4(loopback, bpf_htonl(INADDR_LOOPBACK));
  } else {
    WORDS(loopback)[0] = 0;
    WORDS(loopback)[1] = 0;
    WORDS(loopback)[2] = 0;
    WORDS(loopback)[3] = bpf_htonl(1);
  }
  write_user_address(ctx, ipv6, loopback, port);
}

/* 0 to pass, else the reason to deny. `packets_judged`: the workload's programs see what the socket
 * sends. */
static __always_inline int judge_call(struct bpf_sock_addr* ctx, struct destination* to, int hook,
                                      int packets_judged, const struct mg_workload* workload) {
  if (is_loopback(to->key.address)) {
    __u64 network = bpf_get_netns_cookie(ctx);
    int slot = proxy_slot(network, to->key.address, to->port, to->protocol);
    struct mg_dns_slot steered = {};
    /* A program of a nested cgroup has steered it already. */
    if (slot >= 0) return find_steered(ctx->sk, slot, &steered) ? 0 : MG_REASON_PROXY_PORT;
    if (is_proxy_port_somewhere(to->key.address, to->port, to->protocol))
      note_network(ctx->sk, network); /* so that its packets are not taken for ones to the proxy */
    if (is_open_loopback(to, workload)) return 0;
  }
  int only_address = hook == MG_HOOK_CONNECT && to->protocol != IPPROTO_TCP && packets_judged;
  int reason = only_address ? judge_address(to) : judge(to);
  if (reason && to->protocol == IPPROTO_UDP && is_udp_peer(to, bpf_get_socket_cookie(ctx)))
    return 0;
  return reason;
}

/* Judges a call as one of workload `id`. Returns what the program returns. */
static __always_inline int handle_call(struct bpf_sock_addr* ctx, int ipv6, int hook, __u32 id,
                                       int steers) {
  struct destination to = {};
  struct bpf_sock* sk = ctx->sk;
  if (!sk) return DENY;
  to.key.workload = id;
  to.port = ctx->user_port;
  to.protocol = ctx->protocol;
  read_user_address(ctx, ipv6, to.key.address);
  unspecified_to_loopback(to.key.address);

  int reason = MG_REASON_UNCONFIGURED;
  struct mg_workload* workload = configured_workload(to.key.workload);
  if (workload && is_dns(&to)) {
    if (is_own_socket(sk)) return PASS;
    __be16 port = steers ? steer(sk, bpf_get_netns_cookie(ctx), &to) : 0;
    if (port) {
      steer_call(ctx, ipv6, &to, port);
      return PASS;
    }
    reason = steers ? MG_REASON_NO_PROXY : MG_REASON_DNS_UNSTEERED;
  } else if (workload) {
    reason = judge_call(ctx, &to, hook, steers, workload);
  }
  if (!reason || is_own_socket(sk)) return PASS;
  return deny(&to, bpf_get_current_pid_tgid() >> 32, hook, reason);
}

#endif /* MAPGATE_BPF_CALLS_BPF_H_ */
