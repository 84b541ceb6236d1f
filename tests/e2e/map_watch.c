// SPDX-License-Identifier: Apache-2.0
// Looks into the pinned map of learned addresses, independently of the daemon, until the kernel has
// an address:
//   map_watch PINNED-MAP WORKLOAD-ID ADDRESS [TIMEOUT-SECONDS]
// Prints "watching", and then, once the entry is there, the CLOCK_MONOTONIC nanoseconds at which a
// lookup first found it. It runs ahead of ordinary processes if the machine has more than one
// processor, so that it does not look late because others run. Exit code 1: not within the time (10
// s by default), 2: anything else.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bpf/abi.h"

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

// IPv4 is stored IPv4-mapped.
static bool parse_address(const char* text, __u8 address[16]) {
  if (inet_pton(AF_INET6, text, address) == 1) {
    return true;
  }
  memset(address, 0, 10);
  memset(address + 10, 0xff, 2);
  return inet_pton(AF_INET, text, address + 12) == 1;
}

static void run_ahead_of_others(void) {
  const struct sched_param priority = {.sched_priority = 1};
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1 && sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
    fprintf(stderr, "map_watch: no real-time priority (%s): it may look late\n", strerror(errno));
  }
}

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    fprintf(stderr, "usage: map_watch PINNED-MAP WORKLOAD-ID ADDRESS [TIMEOUT-SECONDS]\n");
    return 2;
  }
  struct mg_address_key key = {.workload = (__u32)strtoul(argv[2], NULL, 10)};
  if (!parse_address(argv[3], key.address)) {
    fprintf(stderr, "map_watch: %s is no address\n", argv[3]);
    return 2;
  }
  const uint64_t timeout_s = argc == 5 ? strtoul(argv[4], NULL, 10) : 10;
  const int map = bpf_obj_get(argv[1]);
  if (map < 0) {
    fprintf(stderr, "map_watch: %s: %s\n", argv[1], strerror(errno));
    return 2;
  }

  run_ahead_of_others();
  puts("watching");
  fflush(stdout);
  const uint64_t deadline = monotonic_ns() + timeout_s * 1000000000U;
  struct mg_port_sets value;
  while (bpf_map_lookup_elem(map, &key, &value) != 0) {
    if (monotonic_ns() > deadline) {
      fprintf(stderr, "map_watch: no entry for %s within %" PRIu64 " s\n", argv[3], timeout_s);
      return 1;
    }
  }
  printf("%" PRIu64 "\n", monotonic_ns());
  return 0;
}
