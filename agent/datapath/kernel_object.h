// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/datapath/error.h"

namespace mapgate::datapath {

// While it lives, libbpf's warnings of this thread go into text() instead of to stderr.
class LibbpfLog {
 public:
  LibbpfLog();
  LibbpfLog(const LibbpfLog&) = delete;
  LibbpfLog& operator=(const LibbpfLog&) = delete;
  ~LibbpfLog();

  // The first warning without its "libbpf: " prefix: the cause; later ones are its consequences.
  [[nodiscard]] std::string first_line() const;

 private:
  libbpf_print_fn_t previous_print_;
  std::string* previous_;
  std::string text_;
};

// Loads the object. If that fails, says what the kernel lacks, or what libbpf or the verifier
// complained about.
[[nodiscard]] Result<void> load_object(bpf_object* object);

// The ids of the maps that a program uses; empty if they cannot be read.
[[nodiscard]] std::vector<std::uint32_t> program_map_ids(int program_fd);

// Checks that the loaded programs use no maps but the object's own.
[[nodiscard]] Result<void> check_map_identity(bpf_object* object);

// Has somebody forbidden to write this map through system calls (bpftool map freeze)?
[[nodiscard]] bool is_frozen(int map_fd);

}  // namespace mapgate::datapath
