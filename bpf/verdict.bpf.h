/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Does a rule of the workload match? And what a denial leaves behind. */
#ifndef MAPGATE_BPF_VERDICT_BPF_H_
#define MAPGATE_BPF_VERDICT_BPF_H_

#include <linux/in.h>

#include <bpf/bpf_endian.h>

#include "bpf/maps.bpf.h"

#define DNS_PORT bpf_htons(53)
#define ENCRYPTED_DNS_PORT bpf_htons(853) /* DNS over TLS and over QUIC */
#define MAPPED_PREFIX bpf_htonl(0xffff)   /* third word of an IPv4-mapped address */

/* What a call or a packet is judged by. The address is in the key's form, so that the first lookup
 * needs no copy. */
struct destination {
  struct mg_address_key key;
  __be16 port; /* the type for ICMP and ICMPv6; 0 if the protocol has none */
  __u8 protocol;
};

/* The address as words. It is 4 byte aligned in every struct that holds one. */
#define WORDS(address) ((__u32*)(address))

static __always_inline void set_ipv4(__u8* address, __be32 ipv4) {
  WORDS(address)[0] = 0;
  WORDS(address)[1] = 0;
  WORDS(address)[2] = MAPPED_PREFIX;
  WORDS(address)[3] = ipv4;
}

static __always_inline void copy_address(__u8* to, const __u8* from) {
  WORDS(to)[0] = WORDS(from)[0];
  WORDS(to)[1] = WORDS(from)[1];
  WORDS(to)[2] = WORDS(from)[2];
  WORDS(to)[3] = WORDS(from)[3];
}

static __always_inline int same_address(const __u8* a, const __u8* b) {
  return WORDS(a)[0] == WORDS(b)[0] && WORDS(a)[1] == WORDS(b)[1] && WORDS(a)[2] == WORDS(b)[2] &&
         WORDS(a)[3] == WORDS(b)[3];
}

static __always_inline int is_ipv4(const __u8* address) {
  return !WORDS(address)[0] && !WORDS(address)[1] && WORDS(address)[2] == MAPPED_PREFIX;
}

/* The unspecified address connects to loopback; so it is loopback from here on. */
static __always_inline void unspecified_to_loopback(__u8* address) {
  if (is_ipv4(address) && !WORDS(address)[3]) WORDS(address)[3] = bpf_htonl(INADDR_LOOPBACK);
  if (!WORDS(address)[0] && !WORDS(address)[1] && !WORDS(address)[2] && !WORDS(address)[3])
    WORDS(address)[3] = bpf_htonl(1);
}

static __always_inline int is_loopback(const __u8* address) {
  if (WORDS(address)[0] || WORDS(address)[1]) return 0;
  if (WORDS(address)[2] == MAPPED_PREFIX) return address[12] == 127;
  return !WORDS(address)[2] && WORDS(address)[3] == bpf_htonl(1);
}

static __always_inline int has_port(__u8 protocol) {
  return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Open on loopback without a rule? Not DNS that the proxy cannot read: a local resolver would pass
 * on to the world whatever it is asked. */
static __always_inline int is_open_loopback(const struct destination* to,
                                            const struct mg_workload* workload) {
  return workload->flags & MG_WORKLOAD_ALLOW_LOOPBACK &&
         !(to->port == ENCRYPTED_DNS_PORT && has_port(to->protocol));
}

static __always_inline __u64 learned_port_sets(const struct destination* to) {
  struct mg_port_sets* sets = bpf_map_lookup_elem(&mg_addresses, &to->key);
  return sets ? sets->port_sets : 0;
}

static __always_inline __u64 prefix_port_sets(const struct destination* to) {
  struct mg_prefix_key key = {.prefixlen = 32 + 128, .workload = to->key.workload};
  copy_address(key.address, to->key.address);
  struct mg_port_sets* sets = bpf_map_lookup_elem(&mg_prefixes, &key);
  return sets ? sets->port_sets : 0;
}

/* The port sets that hold this protocol and port. */
static __always_inline __u64 matching_port_sets(const struct destination* to) {
  struct mg_port_key key = {.prefixlen = 32 + 16 + 16,
                            .workload = to->key.workload,
                            .protocol = bpf_htons(to->protocol),
                            .port = to->port};
  struct mg_port_sets* sets = bpf_map_lookup_elem(&mg_ports, &key);
  return sets ? sets->port_sets : 0;
}

/* 0 if a rule has the address with this protocol and port, else the reason why not. */
static __always_inline int judge(const struct destination* to) {
  __u64 ports = matching_port_sets(to);
  __u64 learned = learned_port_sets(to);
  if (learned & ports) return 0;
  __u64 prefix = prefix_port_sets(to);
  if (prefix & ports) return 0;
  return learned | prefix ? MG_REASON_PORT : MG_REASON_ADDRESS;
}

/* 0 if any rule has the address, whatever its ports. For connect() of datagram sockets:
 * getaddrinfo() connects them to port 0 or so just to learn the source address (RFC 6724), and each
 * packet is judged again. */
static __always_inline int judge_address(const struct destination* to) {
  return learned_port_sets(to) | prefix_port_sets(to) ? 0 : MG_REASON_ADDRESS;
}

/* Did this peer send to the socket of this cookie a short time ago? */
static __always_inline int is_udp_peer(const struct destination* to, __u64 cookie) {
  struct mg_udp_peer_key key = {.cookie = cookie, .port = to->port};
  copy_address(key.address, to->key.address);
  struct mg_udp_peer* peer = bpf_map_lookup_elem(&mg_udp_peers, &key);
  return peer && bpf_ktime_get_ns() - peer->last_seen < MG_UDP_PEER_TIMEOUT_NS;
}

static __always_inline int may_report(__u32 workload, __u64 now) {
  struct mg_event_limit* limit = bpf_map_lookup_elem(&mg_event_limits, &workload);
  if (!limit) return 0;
  if (now - limit->window_start > 1000000000ULL) {
    limit->window_start = now;
    limit->events = 0;
  }
  return limit->events++ < MG_DENIALS_PER_SECOND;
}

static __always_inline int send_event(const struct destination* to, __u32 pid, int hook, int reason,
                                      int audited) {
  __u64 now = bpf_ktime_get_ns();
  if (!may_report(to->key.workload, now)) return 0;
  struct mg_denial* event = bpf_ringbuf_reserve(&mg_denials, sizeof(*event), 0);
  if (!event) return 0;
  event->timestamp = now;
  event->workload = to->key.workload;
  event->pid = pid;
  copy_address(event->address, to->key.address);
  event->port = to->port;
  event->protocol = to->protocol;
  event->hook = hook;
  event->reason = reason;
  event->audited = audited;
  event->reserved = 0;
  bpf_ringbuf_submit(event, 0);
  return 1;
}

/* Counts and reports a denial. Returns whether it takes effect: 1 in audit mode (pass), else 0. */
static __noinline int deny(const struct destination* to, __u32 pid, int hook, int reason) {
  __u32 id = to->key.workload;
  struct mg_workload* workload = bpf_map_lookup_elem(&mg_workloads, &id);
  int audited = workload && workload->mode == MG_MODE_AUDIT;
  struct mg_counters* counters = bpf_map_lookup_elem(&mg_counters, &id);
  if (!counters) return audited;
  if (audited)
    counters->audited++;
  else if (hook == MG_HOOK_CONNECT)
    counters->denied_connects++;
  else if (hook == MG_HOOK_SENDMSG)
    counters->denied_sends++;
  else
    counters->denied_packets++;
  if (!send_event(to, pid, hook, reason, audited)) counters->events_dropped++;
  return audited;
}

/* The workload; 0 if it is not configured. */
static __always_inline struct mg_workload* configured_workload(__u32 id) {
  struct mg_workload* workload = bpf_map_lookup_elem(&mg_workloads, &id);
  return workload && workload->mode != MG_MODE_UNCONFIGURED ? workload : 0;
}

static __always_inline struct mg_socket* find_socket(struct bpf_sock* sk) {
  return bpf_sk_storage_get(&mg_sockets, sk, 0, 0);
}

static __always_inline int is_own_socket(struct bpf_sock* sk) {
  struct mg_socket* socket = find_socket(sk);
  return socket && (socket->flags & MG_SOCKET_OWN);
}

#endif /* MAPGATE_BPF_VERDICT_BPF_H_ */
