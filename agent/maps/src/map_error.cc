// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/map_error.h>

#include <cerrno>
#include <system_error>

namespace mapgate::maps {

using reconciler::ErrorClass;

bool is_array(bpf_map_type type) {
  return type == BPF_MAP_TYPE_ARRAY || type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

bool is_per_cpu(bpf_map_type type) {
  return type == BPF_MAP_TYPE_PERCPU_HASH || type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

bool has_indices(bpf_map_type type) {
  return is_array(type) || type == BPF_MAP_TYPE_ARRAY_OF_MAPS;
}

bool is_map_of_maps(bpf_map_type type) {
  return type == BPF_MAP_TYPE_HASH_OF_MAPS || type == BPF_MAP_TYPE_ARRAY_OF_MAPS;
}

ErrorClass classify(int error, MapAction action, bpf_map_type type) {
  switch (error) {
    case E2BIG:
      // An array has no element past its end, and never will have.
      return action == MapAction::kWrite && !has_indices(type) ? ErrorClass::kCapacity
                                                               : ErrorClass::kPermanent;
    case ENOSPC:
      // Only a trie says "full" that way.
      return action == MapAction::kWrite && type == BPF_MAP_TYPE_LPM_TRIE ? ErrorClass::kCapacity
                                                                          : ErrorClass::kTransient;
    case EBADF:
      return ErrorClass::kTargetLost;
    case ENOENT:
      return action == MapAction::kOpen ? ErrorClass::kTargetLost : ErrorClass::kTransient;
    case EINVAL:
    case EPERM:
    case EACCES:
    case EFAULT:
    case EOPNOTSUPP:
    case kErrnoNotSupported:
      return ErrorClass::kPermanent;
    default:
      return ErrorClass::kTransient;
  }
}

std::string describe_errno(int error) {
  if (error == kErrnoNotSupported) return "not supported by this type of map (ENOTSUPP)";
  return std::generic_category().message(error);
}

std::string describe_type(bpf_map_type type) {
  switch (type) {
    case BPF_MAP_TYPE_HASH:
      return "hash";
    case BPF_MAP_TYPE_ARRAY:
      return "array";
    case BPF_MAP_TYPE_LPM_TRIE:
      return "lpm_trie";
    case BPF_MAP_TYPE_LRU_HASH:
      return "lru_hash";
    case BPF_MAP_TYPE_LRU_PERCPU_HASH:
      return "lru_percpu_hash";
    case BPF_MAP_TYPE_PERCPU_HASH:
      return "percpu_hash";
    case BPF_MAP_TYPE_PERCPU_ARRAY:
      return "percpu_array";
    case BPF_MAP_TYPE_HASH_OF_MAPS:
      return "hash_of_maps";
    case BPF_MAP_TYPE_ARRAY_OF_MAPS:
      return "array_of_maps";
    default:
      return "type " + std::to_string(static_cast<unsigned>(type));
  }
}

std::string MapError::text() const {
  return step + " \"" + name + "\": " + reason;
}

}  // namespace mapgate::maps
