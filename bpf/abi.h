/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The structs that the BPF programs and the daemon share. Every key is free of hidden padding,
 * because a map compares keys byte by byte. IPv4 addresses are stored IPv4-mapped (::ffff:a.b.c.d)
 * everywhere. */
#ifndef MAPGATE_BPF_ABI_H_
#define MAPGATE_BPF_ABI_H_

#include <linux/bpf.h>
#include <linux/types.h>

#define MG_MAX_WORKLOADS 4096 /* ids 1..4095; 0 means "none": attached, but not configured */
#define MG_MAX_PORT_SETS 64   /* per workload: one bit of mg_port_sets each */
#define MG_DNS_SLOTS 8        /* resolvers that one socket can talk to at a time */
#define MG_MAX_NETWORKS 256   /* network namespaces in which the proxy listens */
#define MG_MAX_QUERY 512      /* bytes of a query that mg_unserved holds */

/* How long after the last packet of a UDP peer the workload may still answer it. */
#define MG_UDP_PEER_TIMEOUT_NS (120ULL * 1000 * 1000 * 1000)
/* Denial events per second, workload and CPU; those beyond are only counted. */
#define MG_DENIALS_PER_SECOND 100

enum mg_mode {
  MG_MODE_UNCONFIGURED = 0, /* denies */
  MG_MODE_ENFORCE = 1,
  MG_MODE_AUDIT = 2, /* decides and reports, never denies */
};

enum mg_workload_flags {
  MG_WORKLOAD_ALLOW_LOOPBACK = 1 << 0,
};

/* mg_workloads: array, the index is the workload's id. */
struct mg_workload {
  __u32 mode; /* enum mg_mode */
  __u32 flags;
};

/* mg_bindings: cgroup storage, keyed by cgroup id. */
struct mg_binding {
  __u32 workload;
  __u32 reserved;
};

/* mg_addresses: hash. Addresses learned from DNS answers. */
struct mg_address_key {
  __u32 workload;
  __u8 address[16];
};

/* mg_prefixes: LPM trie. prefixlen counts the 32 bits of the workload, then those of the address.
 */
struct mg_prefix_key {
  __u32 prefixlen;
  __u32 workload;
  __u8 address[16];
};

/* mg_ports: LPM trie over workload, protocol, port, the last two in network byte order. For ICMP
 * and ICMPv6 the port is the message type. A prefixlen of 32 stands for every protocol and port. */
struct mg_port_key {
  __u32 prefixlen;
  __u32 workload;
  __be16 protocol;
  __be16 port;
};

/* The value of all three: an address and a port match when their port_sets share a bit. */
struct mg_port_sets {
  __u64 port_sets;
};

/* The network namespace of what no namespace is known of. The cookies of real ones begin at 1. */
#define MG_NETWORK_UNKNOWN 0

/* mg_proxies: hash, the cookie of a network namespace to the ports that port 53 is steered to
 * there, on 127.0.0.1 and ::1, in network byte order. 0: nobody listens. MG_NETWORK_UNKNOWN has the
 * ports that the proxy tries first in a namespace that it does not know so far. */
struct mg_proxy {
  __be16 udp4[MG_DNS_SLOTS];
  __be16 udp6[MG_DNS_SLOTS];
  __be16 tcp4;
  __be16 tcp6;
};

/* mg_proxy_ports: hash. Every port of mg_proxies, in whichever namespace. */
struct mg_proxy_port {
  __be16 port;
  __u8 protocol;
  __u8 is_ipv4;
};

enum mg_socket_flags {
  MG_SOCKET_OWN = 1 << 0, /* the daemon's: never steered, never denied */
};

/* A resolver that a socket was steered away from. */
struct mg_dns_slot {
  __u8 resolver[16];
  __be16 port; /* 0: the slot is free */
  __u16 reserved;
  __u32 workload;
};

/* mg_sockets: socket storage. TCP uses slot 0 only. */
struct mg_socket {
  struct bpf_spin_lock lock; /* two threads may send on one socket */
  __u32 flags;
  __u32 next_slot; /* the next one to be taken, round robin */
  __u32 reserved;
  /* The cookie of its network namespace, which packet programs cannot ask for before Linux 6.16.
   * MG_NETWORK_UNKNOWN until a call has told. */
  __u64 network;
  struct mg_dns_slot slots[MG_DNS_SLOTS];
};

/* mg_dns_flows: LRU hash, written when a steered packet (UDP) or SYN (TCP) leaves for the proxy. */
struct mg_dns_flow_key {
  __u64 network;
  __u8 source[16];
  __be16 port;
  __u8 protocol;
  __u8 slot;
  __u32 reserved;
};

struct mg_dns_flow {
  __u8 resolver[16];
  __be16 port;
  __u16 reserved;
  __u32 workload;
  __u64 cookie;
  __u64 last_sent; /* CLOCK_MONOTONIC, ns */
};

/* mg_unserved: ring buffer. DNS in a network namespace that mg_proxies does not have. One event
 * says which thread made a call there, so that the daemon can find the namespace. Another holds a
 * query that was dropped for want of a listener (see MG_MAX_QUERY), so that the client need not ask
 * again. */
struct mg_unserved {
  __u64 network;
  __u32 thread; /* 0: not told */
  __u32 workload;
  __u8 source[16];
  __be16 port;
  __u8 slot;
  __u8 reserved;
  __u32 length; /* of the query; 0: the call */
  __u8 query[MG_MAX_QUERY];
};

/* mg_udp_peers: LRU hash, written when a UDP packet comes in: its answer may leave, from the socket
 * that it came to. Not by local port: another network namespace has the same ones. */
struct mg_udp_peer_key {
  __u64 cookie; /* of the socket */
  __u8 address[16];
  __be16 port;
  __u16 reserved[3];
};

struct mg_udp_peer {
  __u64 last_seen; /* CLOCK_MONOTONIC, ns */
};

/* mg_cgroups: hash, cgroup id to workload. What mg_bindings says, for programs that look for the
 * workload of a task. */
struct mg_cgroup {
  __u32 workload;
};

/* mg_judged: per-CPU array of one. The call that a workload's own program has just judged: the
 * guard's, which runs right after it on the same CPU, need not judge (and count) it again. */
struct mg_judged {
  __u64 cookie; /* the socket's; 0: none */
  __u32 workload;
  __u32 reserved;
};

enum mg_reason {
  MG_REASON_UNCONFIGURED = 1, /* the cgroup or its workload is not configured */
  MG_REASON_ADDRESS,          /* no rule has the address */
  MG_REASON_PORT,             /* a rule has the address, but not this protocol and port */
  MG_REASON_DNS_UNSTEERED,    /* port 53, by a way that cannot be steered */
  MG_REASON_NO_PROXY,         /* port 53, and no proxy listens */
  MG_REASON_PROXY_PORT,       /* to the proxy, but not steered there */
  MG_REASON_FRAGMENT,         /* a fragment: its transport header cannot be judged */
  MG_REASON_TRANSPORT_HIDDEN, /* the transport header is missing or too deep */
  MG_REASON_SOURCE_ROUTE, /* IPv4 options or an IPv6 routing header: the true destination may differ
                           */
  MG_REASON_MALFORMED,    /* not an IPv4 or IPv6 packet */
};

enum mg_hook {
  MG_HOOK_CONNECT = 1,
  MG_HOOK_SENDMSG,
  MG_HOOK_PACKET, /* the packet left a socket */
};

/* mg_denials: ring buffer. */
struct mg_denial {
  __u64 timestamp; /* CLOCK_MONOTONIC, ns */
  __u32 workload;
  __u32 pid; /* 0 for MG_HOOK_PACKET: a packet need not leave in its sender's context */
  __u8 address[16];
  __be16 port; /* the type for ICMP and ICMPv6 */
  __u8 protocol;
  __u8 hook;    /* enum mg_hook */
  __u8 reason;  /* enum mg_reason */
  __u8 audited; /* 1: audit mode, it passed */
  __u16 reserved;
};

/* mg_counters: per-CPU array, the index is the workload's id. */
struct mg_counters {
  __u64 denied_connects;
  __u64 denied_sends;
  __u64 denied_packets;
  __u64 audited;        /* what enforce mode would have denied */
  __u64 steered;        /* DNS connects and sends */
  __u64 events_dropped; /* denials without an event: rate limit or full ring */
  __u64 unserved;       /* DNS packets dropped since the proxy did not listen in the network yet */
};

/* mg_event_limits: per-CPU array, the index is the workload's id. */
struct mg_event_limit {
  __u64 window_start; /* CLOCK_MONOTONIC, ns */
  __u64 events;       /* in this window of one second */
};

#endif /* MAPGATE_BPF_ABI_H_ */
