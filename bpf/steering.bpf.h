/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* DNS steering: a destination of port 53 becomes a proxy port on loopback; what comes back shows
 * the resolver again. */
#ifndef MAPGATE_BPF_STEERING_BPF_H_
#define MAPGATE_BPF_STEERING_BPF_H_

#include "bpf/verdict.bpf.h"

static __always_inline int is_dns(const struct destination* to) {
  return to->port == DNS_PORT && has_port(to->protocol);
}

static __always_inline struct mg_settings* find_settings(void) {
  __u32 zero = 0;
  return bpf_map_lookup_elem(&mg_settings, &zero);
}

static __always_inline __be16 proxy_port(const struct mg_settings* settings, __u8 protocol,
                                         int ipv4, __u32 slot) {
  if (protocol == IPPROTO_TCP) return ipv4 ? settings->tcp4 : settings->tcp6;
  slot &= MG_DNS_SLOTS - 1;
  return ipv4 ? settings->udp4[slot] : settings->udp6[slot];
}

/* The slot that a loopback address and port stand for; -1 if that is no proxy port. */
static __always_inline int proxy_slot(const __u8* address, __be16 port, __u8 protocol) {
  struct mg_settings* settings = find_settings();
  if (!settings || !port) return -1;
  int ipv4 = is_ipv4(address);
  if (protocol == IPPROTO_TCP) return proxy_port(settings, protocol, ipv4, 0) == port ? 0 : -1;
  if (protocol != IPPROTO_UDP) return -1;
  for (__u32 slot = 0; slot < MG_DNS_SLOTS; slot++)
    if (proxy_port(settings, protocol, ipv4, slot) == port) return slot;
  return -1;
}

/* Copies the slot if the socket has it in use. */
static __always_inline int read_slot(struct mg_socket* socket, int slot, struct mg_dns_slot* copy) {
  struct mg_dns_slot* in_use = &socket->slots[slot & (MG_DNS_SLOTS - 1)];
  bpf_spin_lock(&socket->lock);
  copy_address(copy->resolver, in_use->resolver);
  copy->port = in_use->port;
  copy->workload = in_use->workload;
  bpf_spin_unlock(&socket->lock);
  return copy->port != 0;
}

/* The slot of this resolver: the one it has already, or the next one round robin. */
static __always_inline __u32 take_slot(struct mg_socket* socket,
                                       const struct destination* resolver) {
  __u32 slot = MG_DNS_SLOTS;
  bpf_spin_lock(&socket->lock);
  for (__u32 i = 0; i < MG_DNS_SLOTS; i++)
    if (socket->slots[i].port == resolver->port &&
        same_address(socket->slots[i].resolver, resolver->key.address))
      slot = i;
  if (slot == MG_DNS_SLOTS) {
    slot = resolver->protocol == IPPROTO_TCP ? 0 : socket->next_slot++ % MG_DNS_SLOTS;
    struct mg_dns_slot* taken = &socket->slots[slot & (MG_DNS_SLOTS - 1)];
    copy_address(taken->resolver, resolver->key.address);
    taken->port = resolver->port;
  }
  socket->slots[slot & (MG_DNS_SLOTS - 1)].workload = resolver->key.workload;
  bpf_spin_unlock(&socket->lock);
  return slot;
}

/* The proxy port to steer to; 0 if nobody listens there or there is no memory. */
static __always_inline __be16 steer(struct bpf_sock* sk, const struct destination* resolver) {
  struct mg_settings* settings = find_settings();
  if (!settings || !proxy_port(settings, resolver->protocol, is_ipv4(resolver->key.address), 0))
    return 0;
  struct mg_socket* socket = bpf_sk_storage_get(&mg_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (!socket) return 0;
  __u32 slot = take_slot(socket, resolver);
  struct mg_counters* counters = bpf_map_lookup_elem(&mg_counters, &resolver->key.workload);
  if (counters) counters->steered++;
  return proxy_port(settings, resolver->protocol, is_ipv4(resolver->key.address), slot);
}

/* Was this socket steered to the proxy port of this slot? Copies the slot then. */
static __always_inline int find_steered(struct bpf_sock* sk, int slot, struct mg_dns_slot* copy) {
  struct mg_socket* socket = find_socket(sk);
  return socket && slot >= 0 && read_slot(socket, slot, copy);
}

/* Tells the proxy who asks whom: it looks the flow up by the address that the packet comes from. */
static __always_inline void record_flow(struct __sk_buff* skb, const __u8* source,
                                        __be16 source_port, __u8 protocol, int slot,
                                        const struct mg_dns_slot* steered) {
  struct mg_dns_flow_key key = {.port = source_port, .protocol = protocol, .slot = slot};
  copy_address(key.source, source);
  struct mg_dns_flow flow = {.port = steered->port,
                             .workload = steered->workload,
                             .cookie = bpf_get_socket_cookie(skb),
                             .last_sent = bpf_ktime_get_ns()};
  copy_address(flow.resolver, steered->resolver);
  bpf_map_update_elem(&mg_dns_flows, &key, &flow, BPF_ANY);
}

#endif /* MAPGATE_BPF_STEERING_BPF_H_ */
