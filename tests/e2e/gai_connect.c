// SPDX-License-Identifier: Apache-2.0
// What an ordinary program does, name after name: getaddrinfo(), then at once connect() to the
// first address.
//   gai_connect [--map-pin PATH --workload ID] FILE
// FILE has lines "HOST:PORT". For each it prints one JSON object:
//   {"name": …, "gai": 0, "address": …, "in_map": true, "errno": 0, "retransmits": 0,
//    "resolve_us": …, "connect_us": …}
// "gai" is getaddrinfo()'s error ("gai_error" its text; the rest is missing then), "errno"
// connect()'s, "retransmits" the SYNs and segments that TCP had to send again. With --map-pin,
// "in_map" says whether the pinned map of learned addresses had every address of the answer at the
// moment it was there. Exit code 0: all lines printed; 2: bad use.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/abi.h"

struct learned_map {
  int fd;  // -1: not asked for
  __u32 workload;
};

static double monotonic_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static bool is_in_map(const struct learned_map* map, const struct addrinfo* entry) {
  struct mg_address_key key = {.workload = map->workload};
  if (entry->ai_family == AF_INET) {
    memset(key.address + 10, 0xff, 2);
    memcpy(key.address + 12, &((const struct sockaddr_in*)(const void*)entry->ai_addr)->sin_addr,
           4);
  } else {
    memcpy(key.address, &((const struct sockaddr_in6*)(const void*)entry->ai_addr)->sin6_addr, 16);
  }
  struct mg_port_sets value;
  return bpf_map_lookup_elem(map->fd, &key, &value) == 0 && value.port_sets != 0;
}

static bool all_in_map(const struct learned_map* map, const struct addrinfo* list) {
  for (const struct addrinfo* entry = list; entry != NULL; entry = entry->ai_next) {
    if (!is_in_map(map, entry)) {
      return false;
    }
  }
  return true;
}

static void connect_and_report(const struct addrinfo* entry) {
  char address[NI_MAXHOST] = "";
  getnameinfo(entry->ai_addr, entry->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST);
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  const double begin = monotonic_us();
  const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int error = fd < 0 || connect(fd, entry->ai_addr, entry->ai_addrlen) != 0 ? errno : 0;
  const double end = monotonic_us();
  if (fd >= 0) {
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    close(fd);
  }
  printf("\"address\": \"%s\", \"errno\": %d, \"retransmits\": %u, \"connect_us\": %.1f", address,
         error, info.tcpi_total_retrans, end - begin);
}

static void resolve_and_connect(const char* host, const char* port, const struct learned_map* map) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo* list = NULL;
  const double begin = monotonic_us();
  const int error = getaddrinfo(host, port, &hints, &list);
  const double end = monotonic_us();
  // Before anything else: the claim is about this moment.
  const bool in_map = error == 0 && map->fd >= 0 && all_in_map(map, list);
  printf("{\"name\": \"%s\", \"gai\": %d, \"resolve_us\": %.1f, ", host, error, end - begin);
  if (error == 0) {
    if (map->fd >= 0) {
      printf("\"in_map\": %s, ", in_map ? "true" : "false");
    }
    connect_and_report(list);
    freeaddrinfo(list);
  } else {
    printf("\"gai_error\": \"%s\"", gai_strerror(error));
  }
  puts("}");
  fflush(stdout);
}

// Both options or none; returns false, with the reason printed, for anything else.
static bool parse_options(int argc, char** argv, struct learned_map* map) {
  static const struct option kOptions[] = {
      {"map-pin", required_argument, NULL, 'm'}, {"workload", required_argument, NULL, 'w'}, {0}};
  const char* pin = NULL;
  for (int option; (option = getopt_long(argc, argv, "", kOptions, NULL)) != -1;) {
    if (option == 'm') {
      pin = optarg;
    } else if (option == 'w') {
      map->workload = (__u32)strtoul(optarg, NULL, 10);
    } else {
      return false;
    }
  }
  if (optind + 1 != argc || (pin != NULL) != (map->workload != 0)) {
    fprintf(stderr, "usage: gai_connect [--map-pin PATH --workload ID] FILE\n");
    return false;
  }
  if (pin == NULL) {
    return true;
  }
  map->fd = bpf_obj_get(pin);
  if (map->fd < 0) {
    fprintf(stderr, "gai_connect: %s: %s\n", pin, strerror(errno));
  }
  return map->fd >= 0;
}

int main(int argc, char** argv) {
  struct learned_map map = {.fd = -1};
  if (!parse_options(argc, argv, &map)) {
    return 2;
  }
  FILE* file = fopen(argv[optind], "r");
  if (file == NULL) {
    fprintf(stderr, "gai_connect: %s: %s\n", argv[optind], strerror(errno));
    return 2;
  }
  char line[512];
  for (int number = 1; fgets(line, sizeof line, file) != NULL; ++number) {
    line[strcspn(line, "\n")] = '\0';
    char* colon = strrchr(line, ':');
    if (colon == NULL) {
      fprintf(stderr, "gai_connect: %s:%d: not HOST:PORT\n", argv[optind], number);
      return 2;
    }
    *colon = '\0';
    resolve_and_connect(line, colon + 1, &map);
  }
  fclose(file);
  return 0;
}
