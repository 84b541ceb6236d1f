/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* All maps. The sizes of those that grow with policy or traffic are set by the loader. */
#ifndef MAPGATE_BPF_MAPS_BPF_H_
#define MAPGATE_BPF_MAPS_BPF_H_

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/abi.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, MG_MAX_WORKLOADS);
  __type(key, __u32);
  __type(value, struct mg_workload);
} mg_workloads SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1);
  __type(key, struct mg_address_key);
  __type(value, struct mg_port_sets);
} mg_addresses SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 1);
  __type(key, struct mg_prefix_key);
  __type(value, struct mg_port_sets);
} mg_prefixes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 1);
  __type(key, struct mg_port_key);
  __type(value, struct mg_port_sets);
} mg_ports SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, MG_MAX_NETWORKS);
  __type(key, __u64);
  __type(value, struct mg_proxy);
} mg_proxies SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, MG_MAX_NETWORKS*(2 * MG_DNS_SLOTS + 2));
  __type(key, struct mg_proxy_port);
  __type(value, __u32);
} mg_proxy_ports SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 256 * 1024);
} mg_unserved SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 1);
  __type(key, struct mg_dns_flow_key);
  __type(value, struct mg_dns_flow);
} mg_dns_flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 1);
  __type(key, struct mg_udp_peer_key);
  __type(value, struct mg_udp_peer);
} mg_udp_peers SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, MG_MAX_WORKLOADS);
  __type(key, __u64);
  __type(value, struct mg_cgroup);
} mg_cgroups SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 256 * 1024);
} mg_denials SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, MG_MAX_WORKLOADS);
  __type(key, __u32);
  __type(value, struct mg_counters);
} mg_counters SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, MG_MAX_WORKLOADS);
  __type(key, __u32);
  __type(value, struct mg_event_limit);
} mg_event_limits SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct mg_judged);
} mg_judged SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_SK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct mg_socket);
} mg_sockets SEC(".maps");

#endif /* MAPGATE_BPF_MAPS_BPF_H_ */
