// SPDX-License-Identifier: Apache-2.0
// Types of keys and values, for the BPF compiler, whose BTF tests read, and for the tests, which
// compare the bytes.
#pragma once

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>

struct integers {
  __u8 u8;
  __s8 s8;
  __u16 u16;
  __s16 s16;
  __u32 u32;
  __s32 s32;
  __u64 u64;
  __s64 s64;
  unsigned __int128 u128;
  __int128 s128;
  _Bool flag;
};

struct network {
  __be16 port;
  __be32 word;
  __be64 cookie;
  __be32 addr;
  struct in_addr v4;
  struct in6_addr v6;
  __u8 peer_addr[16];
  __u8 mac[6];
};

enum verdict { VERDICT_PASS, VERDICT_DROP, VERDICT_REJECT = 7 };
enum level { LEVEL_LOW = -1, LEVEL_HIGH = 1 };

struct lpm_key {
  __u32 prefixlen;
  __u8 addr[4];
};

struct inner {
  __u8 first;  // three bytes of padding behind it
  __u32 second;
};

struct nested {
  struct inner one;
  struct inner many[2];
  __u16 grid[2][3];
  char comm[16];
  enum verdict verdict;
  enum level level;
  __u8 _pad[4];
};

struct bits {
  __u32 low : 3;
  __u32 middle : 17;
  __s32 last : 5;
  __u8 whole;
  __u64 wide : 40;
};

struct either {
  __u8 family;
  union {
    __be32 v4;
    struct in6_addr v6;
    struct {
      __u16 left;
      __u16 right;
    };
  };
  union {
    __u8 small;
    __u32 large;
  } named;
};

struct unwritable {
  void* pointer;
};
