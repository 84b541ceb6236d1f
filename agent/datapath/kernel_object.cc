// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/kernel_object.h"

#include <bpf/bpf.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string_view>
#include <vector>

#include "agent/datapath/unique_fd.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

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

Result<bpf_map_info> map_info(int fd, const std::string& step) {
  bpf_map_info info{};
  std::uint32_t size = sizeof info;
  if (bpf_obj_get_info_by_fd(fd, &info, &size) != 0)
    return std::unexpected(system_error(step, errno));
  return info;
}

Result<void> compare_map(const bpf_map* map, const bpf_map_info& pinned, const std::string& step) {
  struct Property {
    const char* name;
    std::uint32_t pinned;
    std::uint32_t wanted;
  };
  const std::array properties{
      Property{"type", pinned.type, bpf_map__type(map)},
      Property{"key size", pinned.key_size, bpf_map__key_size(map)},
      Property{"value size", pinned.value_size, bpf_map__value_size(map)},
      Property{"max_entries", pinned.max_entries, bpf_map__max_entries(map)},
      Property{"flags", pinned.map_flags, bpf_map__map_flags(map)},
  };
  for (const Property& property : properties) {
    if (property.pinned == property.wanted) continue;
    return std::unexpected(Error{step, EINVAL,
                                 std::string("the pinned map has ") + property.name + " " +
                                     std::to_string(property.pinned) + ", wanted " +
                                     std::to_string(property.wanted)});
  }
  return {};
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

std::vector<std::uint32_t> program_map_ids(int program_fd) {
  std::array<std::uint32_t, 64> ids{};
  bpf_prog_info info{};
  info.nr_map_ids = ids.size();
  info.map_ids = reinterpret_cast<std::uint64_t>(ids.data());
  std::uint32_t size = sizeof info;
  if (bpf_obj_get_info_by_fd(program_fd, &info, &size) != 0) return {};
  return {ids.begin(), ids.begin() + std::min<std::size_t>(info.nr_map_ids, ids.size())};
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

Result<void> set_map_pins(bpf_object* object, const fs::path& directory) {
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    if (bpf_map__is_internal(map)) continue;
    const fs::path pin = directory / bpf_map__name(map);
    const std::string step = "open map " + pin.string();
    if (bpf_map__set_pin_path(map, pin.c_str()) != 0)
      return std::unexpected(system_error(step, errno));
    UniqueFd pinned(bpf_obj_get(pin.c_str()));
    if (!pinned && errno == ENOENT) continue;
    if (!pinned) return std::unexpected(system_error(step, errno));
    auto info = map_info(pinned.get(), step);
    if (!info) return std::unexpected(info.error());
    if (auto same = compare_map(map, *info, step); !same) return same;
  }
  return {};
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

Result<void> check_map_identity(bpf_object* object) {
  std::set<std::uint32_t> pinned_ids;
  std::set<std::uint32_t> internal_ids;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    const std::string step = std::string("check map ") + bpf_map__name(map);
    auto used = map_info(bpf_map__fd(map), step);
    if (!used) return std::unexpected(used.error());
    if (bpf_map__is_internal(map)) {
      internal_ids.insert(used->id);
      continue;
    }
    UniqueFd pin(bpf_obj_get(bpf_map__pin_path(map)));
    if (!pin) return std::unexpected(system_error(step, errno));
    auto pinned = map_info(pin.get(), step);
    if (!pinned) return std::unexpected(pinned.error());
    if (pinned->id != used->id)
      return std::unexpected(Error{step, ESTALE,
                                   "the pin is map " + std::to_string(pinned->id) +
                                       ", the programs use map " + std::to_string(used->id)});
    pinned_ids.insert(pinned->id);
  }
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    for (std::uint32_t id : program_map_ids(bpf_program__fd(program)))
      if (!pinned_ids.contains(id) && !internal_ids.contains(id))
        return std::unexpected(
            Error{std::string("check program ") + bpf_program__name(program), ESTALE,
                  "it uses map " + std::to_string(id) + ", which is not pinned"});
  }
  return {};
}

Result<void> make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return std::unexpected(system_error("make " + directory.string(), error.value()));
  return {};
}

Result<void> pin_programs(bpf_object* object, const fs::path& directory) {
  if (auto made = make_directory(directory); !made) return made;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    const fs::path pin = directory / bpf_program__name(program);
    // Renaming over the old pin leaves no moment without one. (A bpffs name must not hold a dot.)
    const fs::path fresh = pin.string() + "_new";
    ::unlink(fresh.c_str());
    if (bpf_obj_pin(bpf_program__fd(program), fresh.c_str()) != 0 ||
        ::rename(fresh.c_str(), pin.c_str()) != 0)
      return std::unexpected(system_error("pin program " + pin.string(), errno));
  }
  return {};
}

}  // namespace mapgate::datapath
