// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace mapgate::maps {

// Keys of LPM tries (struct bpf_lpm_trie_key): a 32-bit prefix length in host byte order, then the
// data, most significant bit first. The kernel ignores the bits past the prefix and dumps whatever
// the last writer left there, so one node has many spellings; the canonical one has those bits
// zero.

// Brings `key` into canonical form. False, and `key` is untouched, if it is shorter than a prefix
// length or its prefix is longer than its data.
[[nodiscard]] bool canonicalize_lpm_key(std::span<std::byte> key);

[[nodiscard]] bool is_canonical_lpm_key(std::span<const std::byte> key);

}  // namespace mapgate::maps
