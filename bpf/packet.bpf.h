/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds addresses, protocol and ports of the packet in a cgroup_skb program, whose data begins at
 * the IP header. */
#ifndef MAPGATE_BPF_PACKET_BPF_H_
#define MAPGATE_BPF_PACKET_BPF_H_

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "bpf/verdict.bpf.h"

#define MAX_EXTENSION_HEADERS 6
#define IPV4_FRAGMENT_MASK bpf_htons(0x3fff) /* "more fragments", or an offset */

struct packet {
  struct destination to;
  __be16 source_port;
  __u8 source[16] __attribute__((aligned(4)));
};

/* The first bytes of every transport header with ports (TCP, UDP, UDP-Lite, SCTP, DCCP). */
struct transport_ports {
  __be16 source;
  __be16 destination;
};

static __always_inline int has_transport_ports(__u8 protocol) {
  return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE ||
         protocol == IPPROTO_SCTP || protocol == IPPROTO_DCCP;
}

/* `size` bytes at a constant offset, if they lie in the packet's linear part, as headers nearly
 * always do. */
static __always_inline const void* linear_bytes(struct __sk_buff* skb, __u32 offset, __u32 size) {
  const void* data = (const void*)(long)skb->data;
  const void* end = (const void*)(long)skb->data_end;
  return data + offset + size <= end ? data + offset : 0;
}

/* Copies a header at a constant offset; 0 if the packet has it. Much cheaper than the helper alone.
 */
#define LOAD_HEADER(skb, offset, header)                                             \
  ({                                                                                 \
    const typeof(*(header))* direct_ = linear_bytes(skb, offset, sizeof(*(header))); \
    int failed_ = 0;                                                                 \
    if (direct_)                                                                     \
      *(header) = *direct_;                                                          \
    else                                                                             \
      failed_ = bpf_skb_load_bytes(skb, offset, header, sizeof(*(header)));          \
    failed_;                                                                         \
  })

/* The first 4 bytes of the transport header: ports for those protocols that have them, the type for
 * ICMP. */
static __always_inline int needs_transport(__u8 protocol) {
  return has_transport_ports(protocol) || protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6;
}

static __always_inline void set_transport(struct packet* packet,
                                          const struct transport_ports* ports) {
  if (has_transport_ports(packet->to.protocol)) {
    packet->source_port = ports->source;
    packet->to.port = ports->destination;
  } else {
    packet->source_port = 0;
    packet->to.port = bpf_htons(bpf_ntohs(ports->source) >> 8);
  }
}

static __always_inline int parse_ipv4(struct __sk_buff* skb, struct packet* packet) {
  struct iphdr header;
  struct transport_ports ports = {};
  if (LOAD_HEADER(skb, 0, &header) || header.version != 4) return MG_REASON_MALFORMED;
  set_ipv4(packet->to.key.address, header.daddr);
  set_ipv4(packet->source, header.saddr);
  packet->to.protocol = header.protocol;
  if (header.ihl != 5) return MG_REASON_SOURCE_ROUTE;
  if (header.frag_off & IPV4_FRAGMENT_MASK) return MG_REASON_FRAGMENT;
  if (needs_transport(header.protocol) && LOAD_HEADER(skb, sizeof(header), &ports))
    return MG_REASON_TRANSPORT_HIDDEN;
  set_transport(packet, &ports);
  return 0;
}

/* The first 4 bytes of an IPv6 extension header. */
struct extension_header {
  __u8 next_header;
  __u8 length;
  __u8 routing_type;
  __u8 segments_left;
};

static __always_inline int is_extension_header(__u8 protocol) {
  return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
         protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_AH || protocol == IPPROTO_MH ||
         protocol == IPPROTO_FRAGMENT;
}

/* Walks the extension headers that begin with protocol `next`, up to the transport header. */
static __always_inline int skip_extension_headers(struct __sk_buff* skb, struct packet* packet,
                                                  __u8 next) {
  struct transport_ports ports = {};
  __u32 offset = sizeof(struct ipv6hdr);
  for (int i = 0; i < MAX_EXTENSION_HEADERS && is_extension_header(next); i++) {
    struct extension_header extension;
    if (next == IPPROTO_FRAGMENT) return MG_REASON_FRAGMENT;
    if (bpf_skb_load_bytes(skb, offset, &extension, sizeof(extension)))
      return MG_REASON_TRANSPORT_HIDDEN;
    if (next == IPPROTO_ROUTING && extension.segments_left) return MG_REASON_SOURCE_ROUTE;
    offset += next == IPPROTO_AH ? (extension.length + 2) * 4 : (extension.length + 1) * 8;
    next = extension.next_header;
  }
  packet->to.protocol = next;
  if (is_extension_header(next)) return MG_REASON_TRANSPORT_HIDDEN;
  if (needs_transport(next) && bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)))
    return MG_REASON_TRANSPORT_HIDDEN;
  set_transport(packet, &ports);
  return 0;
}

static __always_inline int parse_ipv6(struct __sk_buff* skb, struct packet* packet) {
  struct ipv6hdr header;
  struct transport_ports ports = {};
  if (LOAD_HEADER(skb, 0, &header) || header.version != 6) return MG_REASON_MALFORMED;
  copy_address(packet->to.key.address, header.daddr.in6_u.u6_addr8);
  copy_address(packet->source, header.saddr.in6_u.u6_addr8);
  packet->to.protocol = header.nexthdr;
  if (is_extension_header(header.nexthdr))
    return skip_extension_headers(skb, packet, header.nexthdr);
  if (needs_transport(header.nexthdr) && LOAD_HEADER(skb, sizeof(header), &ports))
    return MG_REASON_TRANSPORT_HIDDEN;
  set_transport(packet, &ports);
  return 0;
}

/* Fills the packet's addresses, protocol and ports. 0, or the reason why it cannot be judged. */
static __always_inline int parse_packet(struct __sk_buff* skb, struct packet* packet) {
  if (skb->protocol == bpf_htons(ETH_P_IP)) return parse_ipv4(skb, packet);
  if (skb->protocol == bpf_htons(ETH_P_IPV6)) return parse_ipv6(skb, packet);
  return MG_REASON_MALFORMED;
}

#endif /* MAPGATE_BPF_PACKET_BPF_H_ */
