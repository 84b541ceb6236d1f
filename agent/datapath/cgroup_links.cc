// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/cgroup_links.h"

#include <bpf/bpf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "agent/datapath/environment.h"
#include "agent/datapath/kernel_object.h"
#include "agent/datapath/unique_fd.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

// The id of the cgroup that a pinned link is attached to; 0 once the kernel has detached it.
// ENOENT: no such pin.
Result<std::uint64_t> linked_cgroup(const fs::path& pin) {
  UniqueFd link(bpf_obj_get(pin.c_str()));
  bpf_link_info info{};
  std::uint32_t size = sizeof info;
  if (!link || bpf_obj_get_info_by_fd(link.get(), &info, &size) != 0)
    return std::unexpected(system_error("open link " + pin.string(), errno));
  return info.cgroup.cgroup_id;
}

// Detaches at once. Only unlinking the pin would leave that to a worker of the kernel, some time
// later.
void remove_link(const fs::path& pin) {
  UniqueFd link(bpf_obj_get(pin.c_str()));
  if (link) (void)bpf_link_detach(link.get());
  ::unlink(pin.c_str());
}

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    result.push_back(entry.path());
  return result;
}

}  // namespace

Result<void> remove_links(const fs::path& directory) {
  std::ranges::for_each(entries(directory), remove_link);
  if (::rmdir(directory.c_str()) != 0 && errno != ENOENT)
    return std::unexpected(system_error("remove " + directory.string(), errno));
  return {};
}

CgroupLinks::CgroupLinks(bpf_object* object, fs::path directory, fs::path cgroup_root)
    : object_(object), directory_(std::move(directory)), cgroup_root_(std::move(cgroup_root)) {}

fs::path CgroupLinks::directory_of(std::uint64_t cgroup) const {
  return directory_ / std::to_string(cgroup);
}

std::vector<std::uint64_t> CgroupLinks::pinned() const {
  std::vector<std::uint64_t> ids;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename();
    std::uint64_t id = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (failed == std::errc() && end == name.data() + name.size()) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

bool CgroupLinks::is_attached(std::uint64_t cgroup) const {
  const bpf_program* program = nullptr;
  for (program = bpf_object__next_program(object_, nullptr); program != nullptr;
       program = bpf_object__next_program(object_, const_cast<bpf_program*>(program)))
    if (linked_cgroup(directory_of(cgroup) / bpf_program__name(program)).value_or(0) != cgroup)
      return false;
  return true;
}

bool CgroupLinks::is_dead(std::uint64_t cgroup) const {
  return !open_cgroup(cgroup_root_, cgroup);
}

Result<bool> CgroupLinks::attach_program(const bpf_program* program, int cgroup_fd,
                                         const fs::path& pin) const {
  const int program_fd = bpf_program__fd(program);
  UniqueFd old(bpf_obj_get(pin.c_str()));
  if (old) {
    if (bpf_link_update(old.get(), program_fd, nullptr) == 0) return false;
    // Somebody has detached the link, and left the pin.
    if (errno != ENOLINK)
      return std::unexpected(system_error("update link " + pin.string(), errno));
    ::unlink(pin.c_str());
  }
  UniqueFd link(
      bpf_link_create(program_fd, cgroup_fd, bpf_program__expected_attach_type(program), nullptr));
  if (!link)
    return std::unexpected(system_error(
        std::string("attach ") + bpf_program__name(program) + " to the cgroup", errno));
  if (bpf_obj_pin(link.get(), pin.c_str()) != 0)
    return std::unexpected(system_error("pin link " + pin.string(), errno));
  return true;
}

Result<void> CgroupLinks::attach(std::uint64_t cgroup) {
  Result<UniqueFd> cgroup_fd = open_cgroup(cgroup_root_, cgroup);
  if (!cgroup_fd) return std::unexpected(cgroup_fd.error());
  const fs::path directory = directory_of(cgroup);
  if (auto made = make_directory(directory); !made) return made;
  std::vector<fs::path> fresh;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object_) {
    const fs::path pin = directory / bpf_program__name(program);
    Result<bool> is_new = attach_program(program, cgroup_fd->get(), pin);
    if (!is_new) {
      std::ranges::for_each(fresh, remove_link);
      ::rmdir(directory.c_str());  // fails, as it should, if older links are left
      return std::unexpected(is_new.error());
    }
    if (*is_new) fresh.push_back(pin);
  }
  remove_unknown(directory);
  return {};
}

// Links of programs that an older version had and this one has not.
void CgroupLinks::remove_unknown(const fs::path& directory) const {
  for (const fs::path& pin : entries(directory))
    if (bpf_object__find_program_by_name(object_, pin.filename().c_str()) == nullptr)
      remove_link(pin);
}

Result<void> CgroupLinks::remove(std::uint64_t cgroup) {
  return remove_links(directory_of(cgroup));
}

}  // namespace mapgate::datapath
