/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* DNS steering: a destination of port 53 becomes a proxy port on loopback; what comes back shows
 * the resolver again. */
#ifndef MAPGATE_BPF_STEERING_BPF_H_
#define MAPGATE_BPF_STEERING_BPF_H_

#include "bpf/verdict.bpf.h"

static __always_inline int is_dns(const struct destination* to) {
  return to->port == DNS_PORT && has_port(to->protocol);
}

static __always_inline struct mg_proxy* find_proxy(__u64 network) {
  return bpf_map_lookup_elem(&mg_proxies, &network);
}

/* Where the proxy listens in this network namespace, or will if it can. */
static __always_inline struct mg_proxy* find_or_expect_proxy(__u64 network) {
  struct mg_proxy* proxy = find_proxy(network);
  return proxy ? proxy : find_proxy(MG_NETWORK_UNKNOWN);
}

static __always_inline __be16 proxy_port(const struct mg_proxy* proxy, __u8 protocol, int ipv4,
                                         __u32 slot) {
  if (protocol == IPPROTO_TCP) return ipv4 ? proxy->tcp4 : proxy->tcp6;
  slot &= MG_DNS_SLOTS - 1;
  return ipv4 ? proxy->udp4[slot] : proxy->udp6[slot];
}

/* Does the proxy listen at this port of loopback in any network namespace? */
static __always_inline int is_proxy_port_somewhere(const __u8* address, __be16 port,
                                                   __u8 protocol) {
  struct mg_proxy_port key = {.port = port, .protocol = protocol, .is_ipv4 = is_ipv4(address)};
  return bpf_map_lookup_elem(&mg_proxy_ports, &key) != 0;
}

/* The slot that a loopback address and port stand for in this network namespace; -1 if that is no
 * proxy port there. */
static __always_inline int proxy_slot(__u64 network, const __u8* address, __be16 port,
                                      __u8 protocol) {
  if (!is_proxy_port_somewhere(address, port, protocol)) return -1;
  struct mg_proxy* proxy = find_or_expect_proxy(network);
  if (!proxy || !port) return -1;
  int ipv4 = is_ipv4(address);
  if (protocol == IPPROTO_TCP) return proxy_port(proxy, protocol, ipv4, 0) == port ? 0 : -1;
  if (protocol != IPPROTO_UDP) return -1;
  for (__u32 slot = 0; slot < MG_DNS_SLOTS; slot++)
    if (proxy_port(proxy, protocol, ipv4, slot) == port) return slot;
  return -1;
}

/* Notes the network namespace of a socket, for the programs that see its packets. 0 if there is no
 * memory. */
static __always_inline struct mg_socket* note_network(struct bpf_sock* sk, __u64 network) {
  struct mg_socket* socket = bpf_sk_storage_get(&mg_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (socket && socket->network != network) socket->network = network;
  return socket;
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

/* Tells the daemon of a network namespace that it does not serve. A full ring loses it: the client
 * asks again, and is told of again. */
static __always_inline void report_network(__u64 network, __u32 workload) {
  struct mg_unserved* event = bpf_ringbuf_reserve(&mg_unserved, sizeof(*event), 0);
  if (!event) return;
  event->network = network;
  event->thread = bpf_get_current_pid_tgid();
  event->workload = workload;
  event->length = 0;
  bpf_ringbuf_submit(event, 0);
}

/* The proxy port to steer to; 0 if nobody listens there or there is no memory. */
static __always_inline __be16 steer(struct bpf_sock* sk, __u64 network,
                                    const struct destination* resolver) {
  struct mg_proxy* proxy = find_or_expect_proxy(network);
  if (!proxy || !proxy_port(proxy, resolver->protocol, is_ipv4(resolver->key.address), 0)) return 0;
  struct mg_socket* socket = note_network(sk, network);
  if (!socket) return 0;
  __u32 slot = take_slot(socket, resolver);
  struct mg_counters* counters = bpf_map_lookup_elem(&mg_counters, &resolver->key.workload);
  if (counters) counters->steered++;
  if (!find_proxy(network)) report_network(network, resolver->key.workload);
  return proxy_port(proxy, resolver->protocol, is_ipv4(resolver->key.address), slot);
}

/* Was this socket steered to the proxy port of this slot? Copies the slot then. */
static __always_inline int find_steered(struct bpf_sock* sk, int slot, struct mg_dns_slot* copy) {
  struct mg_socket* socket = find_socket(sk);
  return socket && slot >= 0 && read_slot(socket, slot, copy);
}

/* Tells the proxy who asks whom: it looks the flow up by the address that the packet comes from. */
static __always_inline void record_flow(struct __sk_buff* skb, __u64 network, const __u8* source,
                                        __be16 source_port, __u8 protocol, int slot,
                                        const struct mg_dns_slot* steered) {
  struct mg_dns_flow_key key = {
      .network = network, .port = source_port, .protocol = protocol, .slot = slot};
  copy_address(key.source, source);
  struct mg_dns_flow flow = {.port = steered->port,
                             .workload = steered->workload,
                             .cookie = bpf_get_socket_cookie(skb),
                             .last_sent = bpf_ktime_get_ns()};
  copy_address(flow.resolver, steered->resolver);
  bpf_map_update_elem(&mg_dns_flows, &key, &flow, BPF_ANY);
}

#endif /* MAPGATE_BPF_STEERING_BPF_H_ */
