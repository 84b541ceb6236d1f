// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/kernel_object.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <set>
#include <string_view>
#include <vector>

namespace mapgate::datapath {
namespace {

// libbpf's print callback takes no context; a load runs on one thread from start to end.
thread_local std::string* current_log = nullptr;

__attribute__((format(printf, 2, 0))) int collect(libbpf_print_level level, const char* format,
                                                  va_list arguments) {
  constexpr std::size_t kMaxLog = 64 * 1024;
  if (level != LIBBPF_WARN || current_log == nullptr || current_log->size() > kMaxLog) return 0;
  std::array<char, 2048> line{};
  std::vsnprintf(line.data(), line.size(), format, arguments);
  *current_log += line.data();
  return 0;
}

// Called when loading has failed, so that a working kernel pays nothing for it.
std::string missing_feature() {
  struct MapType {
    bpf_map_type type;
    const char* name;
  };
  constexpr std::array kMapTypes{
      MapType{BPF_MAP_TYPE_LPM_TRIE, "LPM trie maps"},
      MapType{BPF_MAP_TYPE_LRU_HASH, "LRU hash maps"},
      MapType{BPF_MAP_TYPE_CGROUP_STORAGE, "cgroup storage maps"},
      MapType{BPF_MAP_TYPE_SK_STORAGE, "socket storage maps"},
      MapType{BPF_MAP_TYPE_RINGBUF, "ring buffer maps"},
  };
  for (const MapType& map : kMapTypes)
    if (libbpf_probe_bpf_map_type(map.type, nullptr) == 0) return map.name;
  struct ProgramType {
    bpf_prog_type type;
    const char* name;
  };
  constexpr std::array kProgramTypes{
      ProgramType{BPF_PROG_TYPE_CGROUP_SKB, "cgroup_skb programs (CONFIG_CGROUP_BPF)"},
      ProgramType{BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
                  "cgroup socket address programs (CONFIG_CGROUP_BPF)"},
  };
  for (const ProgramType& program : kProgramTypes)
    if (libbpf_probe_bpf_prog_type(program.type, nullptr) == 0) return program.name;
  return {};
}

}  // namespace

LibbpfLog::LibbpfLog() : previous_print_(libbpf_set_print(collect)), previous_(current_log) {
  current_log = &text_;
}

LibbpfLog::~LibbpfLog() {
  libbpf_set_print(previous_print_);
  current_log = previous_;
}

std::string LibbpfLog::first_line() const {
  constexpr std::string_view kPrefix = "libbpf: ";
  std::string line = text_.substr(0, text_.find('\n'));
  if (line.starts_with(kPrefix)) line.erase(0, kPrefix.size());
  return line;
}

Result<void> load_object(bpf_object* object) {
  LibbpfLog log;
  if (bpf_object__load(object) == 0) return {};
  Error error = system_error("load the BPF programs", errno);
  if (error.error_number == EPERM) return std::unexpected(error);
  if (std::string missing = missing_feature(); !missing.empty())
    error.text = "the kernel lacks " + missing;
  else if (std::string line = log.first_line(); !line.empty())
    error.text += ": " + line;
  return std::unexpected(error);
}

std::vector<std::uint32_t> program_map_ids(int program_fd) {
  std::array<std::uint32_t, 64> ids{};
  bpf_prog_info info{};
  info.nr_map_ids = ids.size();
  info.map_ids = reinterpret_cast<std::uint64_t>(ids.data());
  std::uint32_t size = sizeof info;
  if (bpf_obj_get_info_by_fd(program_fd, &info, &size) != 0) return {};
  return {ids.begin(), ids.begin() + std::min<std::size_t>(info.nr_map_ids, ids.size())};
}

Result<void> check_map_identity(bpf_object* object) {
  std::set<std::uint32_t> own;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    bpf_map_info info{};
    std::uint32_t size = sizeof info;
    if (bpf_obj_get_info_by_fd(bpf_map__fd(map), &info, &size) != 0)
      return std::unexpected(system_error(std::string("check map ") + bpf_map__name(map), errno));
    own.insert(info.id);
  }
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    for (std::uint32_t id : program_map_ids(bpf_program__fd(program)))
      if (!own.contains(id))
        return std::unexpected(
            Error{std::string("check program ") + bpf_program__name(program), ESTALE,
                  "it uses map " + std::to_string(id) + ", which is not the datapath's"});
  }
  return {};
}

bool is_frozen(int map_fd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(map_fd));
  for (std::string line; std::getline(info, line);)
    if (line == "frozen:\t1") return true;
  return false;
}

}  // namespace mapgate::datapath
