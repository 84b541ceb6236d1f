// SPDX-License-Identifier: Apache-2.0
#include "tests/schema/types.h"

// Only types that something has are in the BTF.
struct integers integers;
struct network network;
struct lpm_key lpm_key;
struct nested nested;
struct bits bits;
struct either either;
struct unwritable unwritable;
__u32 word;
