/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs that a workload's cgroup gets. connect() and sendmsg() fail with EPERM at once; the
 * egress program is the backstop for everything that gets past them. */
#include <linux/bpf.h>
#include <linux/udp.h>

#include <bpf/bpf_helpers.h>

#include "bpf/abi.h"
#include "bpf/calls.bpf.h"
#include "bpf/packet.bpf.h"
#include "bpf/steering.bpf.h"
#include "bpf/verdict.bpf.h"

/* Not in the UAPI headers; the numbers are ABI (bpf_sock::state and ::type show them). */
#define SOCK_STREAM 1
#define SOCK_DGRAM 2

struct {
  __uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
  __type(key, __u64); /* cgroup id: one value for all programs attached to the cgroup */
  __type(value, struct mg_binding);
} mg_bindings SEC(".maps");

/* Set by the loader for BPF_PROG_TEST_RUN, which runs programs outside of any cgroup; 0 otherwise.
 */
const volatile __u32 test_workload = 0;

static __always_inline __u32 current_workload(void) {
  if (test_workload) return test_workload;
  return ((struct mg_binding*)bpf_get_local_storage(&mg_bindings, 0))->workload;
}

/* --- connect() and sendmsg() --- */

static __always_inline int handle_own_call(struct bpf_sock_addr* ctx, int ipv6, int hook) {
  __u32 workload = current_workload();
  note_judged(ctx, workload);
  return handle_call(ctx, ipv6, hook, workload, 1);
}

SEC("cgroup/connect4")
int mg_connect4(struct bpf_sock_addr* ctx) {
  return handle_own_call(ctx, 0, MG_HOOK_CONNECT);
}

SEC("cgroup/connect6")
int mg_connect6(struct bpf_sock_addr* ctx) {
  return handle_own_call(ctx, 1, MG_HOOK_CONNECT);
}

SEC("cgroup/sendmsg4")
int mg_sendmsg4(struct bpf_sock_addr* ctx) {
  return handle_own_call(ctx, 0, MG_HOOK_SENDMSG);
}

SEC("cgroup/sendmsg6")
int mg_sendmsg6(struct bpf_sock_addr* ctx) {
  return handle_own_call(ctx, 1, MG_HOOK_SENDMSG);
}

/* --- recvmsg() and getpeername(): show the resolver that was asked, not the proxy --- */

static __always_inline int unsteer(struct bpf_sock_addr* ctx, int ipv6) {
  __u8 address[16] __attribute__((aligned(4)));
  read_user_address(ctx, ipv6, address);
  if (!ctx->sk || !is_loopback(address)) return PASS;
  int slot = proxy_slot(bpf_get_netns_cookie(ctx), address, ctx->user_port, ctx->protocol);
  struct mg_dns_slot steered = {};
  if (find_steered(ctx->sk, slot, &steered))
    write_user_address(ctx, ipv6, steered.resolver, steered.port);
  return PASS;
}

SEC("cgroup/recvmsg4")
int mg_recvmsg4(struct bpf_sock_addr* ctx) {
  return unsteer(ctx, 0);
}

SEC("cgroup/recvmsg6")
int mg_recvmsg6(struct bpf_sock_addr* ctx) {
  return unsteer(ctx, 1);
}

SEC("cgroup/getpeername4")
int mg_getpeername4(struct bpf_sock_addr* ctx) {
  return unsteer(ctx, 0);
}

SEC("cgroup/getpeername6")
int mg_getpeername6(struct bpf_sock_addr* ctx) {
  return unsteer(ctx, 1);
}

/* --- packets --- */

/* What cgroup_skb/egress returns for NET_XMIT_DROP, which no sender takes for an error. */
#define DROP_SILENTLY 2
#define UNSERVED (-1) /* no reason to deny: drop silently */

static __always_inline __u64 network_of(struct bpf_sock* sk) {
  struct mg_socket* socket = sk ? find_socket(sk) : 0;
  return socket ? socket->network : MG_NETWORK_UNKNOWN;
}

/* Was this packet's connection judged before? True for TCP sockets past SYN_SENT, and for what TCP
 * answers with (SYN-ACKs, packets of TIME_WAIT). Raw sockets of protocol TCP have another type, and
 * are judged. */
static __always_inline int is_judged_tcp(struct bpf_sock* sk, struct bpf_sock* full) {
  if (full)
    return full->type == SOCK_STREAM && full->protocol == IPPROTO_TCP &&
           full->state != BPF_TCP_SYN_SENT;
  return sk->state == BPF_TCP_NEW_SYN_RECV || sk->state == BPF_TCP_TIME_WAIT;
}

/* Hands a query that nobody listens for to the daemon. */
static __always_inline void report_query(struct __sk_buff* skb, __u64 network,
                                         const struct packet* packet, int slot) {
  __u32 header = sizeof(struct udphdr) +
                 (is_ipv4(packet->source) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
  __u32 last = skb->len - header - 1;
  if (packet->to.protocol != IPPROTO_UDP || skb->len <= header || last >= MG_MAX_QUERY) return;
  struct mg_unserved* event = bpf_ringbuf_reserve(&mg_unserved, sizeof(*event), 0);
  if (!event) return;
  event->network = network;
  event->thread = 0;
  event->workload = packet->to.key.workload;
  copy_address(event->source, packet->source);
  event->port = packet->source_port;
  event->slot = slot;
  asm volatile("" : "+r"(last)); /* or the compiler drops what the verifier needs */
  last &= MG_MAX_QUERY - 1;
  event->length = last + 1;
  if (bpf_skb_load_bytes(skb, header, event->query, last + 1))
    bpf_ringbuf_discard(event, 0);
  else
    bpf_ringbuf_submit(event, 0);
}

/* Nobody listens in this network namespace yet. The packet is lost as on a bad line
 * (NET_XMIT_DROP), because an error would make the client give up: TCP sends it again, and of UDP
 * the daemon has it. A socket with IP_RECVERR hears ENOBUFS all the same. */
static __always_inline int drop_unserved(struct __sk_buff* skb, __u64 network,
                                         const struct packet* packet, int slot) {
  struct mg_counters* counters = bpf_map_lookup_elem(&mg_counters, &packet->to.key.workload);
  if (counters) counters->unserved++;
  report_query(skb, network, packet, slot);
  return UNSERVED;
}

/* 0 to pass, else the reason to deny, or UNSERVED. */
static __always_inline int judge_steered_packet(struct __sk_buff* skb, struct bpf_sock* sk,
                                                __u64 network, const struct packet* packet,
                                                int slot) {
  struct mg_dns_slot steered = {};
  if (!find_steered(sk, slot, &steered)) return MG_REASON_PROXY_PORT;
  record_flow(skb, network, packet->source, packet->source_port, packet->to.protocol, slot,
              &steered);
  return find_proxy(network) ? 0 : drop_unserved(skb, network, packet, slot);
}

static __always_inline int judge_packet(struct __sk_buff* skb, struct bpf_sock* sk,
                                        struct packet* packet, const struct mg_workload* workload) {
  const struct destination* to = &packet->to;
  if (is_dns(to)) return MG_REASON_DNS_UNSTEERED;
  if (is_loopback(to->key.address)) {
    if (is_proxy_port_somewhere(to->key.address, to->port, to->protocol)) {
      __u64 network = network_of(sk);
      /* A socket that made no call with an address: who knows where it is. */
      if (network == MG_NETWORK_UNKNOWN) return MG_REASON_PROXY_PORT;
      int slot = proxy_slot(network, to->key.address, to->port, to->protocol);
      if (slot >= 0) return judge_steered_packet(skb, sk, network, packet, slot);
    }
    if (is_open_loopback(to, workload)) return 0;
  }
  int reason = judge(to);
  if (reason && to->protocol == IPPROTO_UDP && is_udp_peer(to, bpf_get_socket_cookie(skb)))
    return 0;
  return reason;
}

SEC("cgroup_skb/egress")
int mg_egress(struct __sk_buff* skb) {
  struct bpf_sock* sk = skb->sk;
  if (!sk) return PASS; /* the kernel's own; the hook is not called for these */
  struct bpf_sock* full = bpf_sk_fullsock(sk);
  struct packet packet = {};
  int unparsable = parse_packet(skb, &packet);
  /* Its destination is the connection's, unless a routing header or an option sends it elsewhere.
   */
  if (!unparsable && is_judged_tcp(sk, full)) return PASS;

  packet.to.key.workload = current_workload();
  struct mg_workload* workload = configured_workload(packet.to.key.workload);
  int reason = unparsable;
  if (!workload)
    reason = MG_REASON_UNCONFIGURED;
  else if (!reason)
    reason = judge_packet(skb, full, &packet, workload);
  if (!reason || (full && is_own_socket(full))) return PASS;
  if (reason == UNSERVED) return DROP_SILENTLY;
  return deny(&packet.to, 0, MG_HOOK_PACKET, reason);
}

/* Remembers who sent a UDP packet, so that the answer may leave. Refreshes an entry at most once a
 * second. */
static __always_inline void remember_udp_peer(struct __sk_buff* skb, const struct packet* packet) {
  struct mg_udp_peer_key key = {.cookie = bpf_get_socket_cookie(skb), .port = packet->source_port};
  copy_address(key.address, packet->source);
  struct mg_udp_peer now = {.last_seen = bpf_ktime_get_ns()};
  struct mg_udp_peer* peer = bpf_map_lookup_elem(&mg_udp_peers, &key);
  if (!peer)
    bpf_map_update_elem(&mg_udp_peers, &key, &now, BPF_ANY);
  else if (now.last_seen - peer->last_seen > 1000000000ULL)
    peer->last_seen = now.last_seen;
}

SEC("cgroup_skb/ingress")
int mg_ingress(struct __sk_buff* skb) {
  struct packet packet = {};
  struct bpf_sock* sk = skb->sk;
  if (!sk) return PASS;
  struct bpf_sock* full = bpf_sk_fullsock(sk);
  if (!full || full->protocol != IPPROTO_UDP || full->type != SOCK_DGRAM) return PASS;
  if (parse_packet(skb, &packet) || packet.to.protocol != IPPROTO_UDP) return PASS;
  /* The proxy's answers: one entry for each query would only push others out. */
  if (is_loopback(packet.source)) {
    __u64 network = network_of(full);
    if (network != MG_NETWORK_UNKNOWN &&
        proxy_slot(network, packet.source, packet.source_port, IPPROTO_UDP) >= 0)
      return PASS;
  }
  remember_udp_peer(skb, &packet);
  return PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
