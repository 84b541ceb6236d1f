// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bpf/libbpf.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

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

// Lets the object's maps be pinned below `directory`, or taken from there. A map pinned with
// another layout or size is an error that names the map and both values. Call before loading.
[[nodiscard]] Result<void> set_map_pins(bpf_object* object, const std::filesystem::path& directory);

// Loads the object. If that fails, says what the kernel lacks, or what libbpf or the verifier
// complained about.
[[nodiscard]] Result<void> load_object(bpf_object* object);

// Checks that each pin is the map that the loaded programs use: another process may have replaced
// it meanwhile.
[[nodiscard]] Result<void> check_map_identity(bpf_object* object);

// Pins every program below `directory`, replacing older ones.
[[nodiscard]] Result<void> pin_programs(bpf_object* object, const std::filesystem::path& directory);

// mkdir -p on a bpffs.
[[nodiscard]] Result<void> make_directory(const std::filesystem::path& directory);

}  // namespace mapgate::datapath
