// SPDX-License-Identifier: Apache-2.0
#include "agent/datapath/cgroup_links.h"

#include <bpf/bpf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "agent/datapath/environment.h"
#include "agent/datapath/pin.h"

namespace mapgate::datapath {
namespace {

namespace fs = std::filesystem;

struct LinkState {
  std::uint64_t cgroup = 0;  // 0 once the kernel has detached it
  std::uint32_t program = 0;
};

// All zero if it is no link of a cgroup.
LinkState state_of(int link) {
  bpf_link_info info{};
  std::uint32_t size = sizeof info;
  if (link < 0 || bpf_obj_get_info_by_fd(link, &info, &size) != 0 ||
      info.type != BPF_LINK_TYPE_CGROUP)
    return {};
  return {info.cgroup.cgroup_id, info.prog_id};
}

std::uint32_t program_id(const bpf_program* program) {
  bpf_prog_info info{};
  std::uint32_t size = sizeof info;
  return bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) == 0 ? info.id : 0;
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

CgroupLinks::CgroupLinks(bpf_object* object, fs::path directory, fs::path cgroup_root)
    : object_(object), directory_(std::move(directory)), cgroup_root_(std::move(cgroup_root)) {}

fs::path CgroupLinks::directory_of(std::uint64_t cgroup) const {
  return directory_ / std::to_string(cgroup);
}

std::vector<std::uint64_t> CgroupLinks::pinned() const {
  std::vector<std::uint64_t> ids;
  for (const fs::path& entry : entries(directory_)) {
    const std::string name = entry.filename();
    std::uint64_t id = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (failed == std::errc() && end == name.data() + name.size()) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

bool CgroupLinks::is_attached(std::uint64_t cgroup) const {
  const auto held = held_.find(cgroup);
  if (held == held_.end()) return false;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object_) {
    const auto link = held->second.find(bpf_program__name(program));
    if (link == held->second.end() || state_of(link->second.fd.get()).cgroup != cgroup ||
        pin_inode(directory_of(cgroup) / link->first) != link->second.pin)
      return false;
  }
  return true;
}

bool CgroupLinks::is_dead(std::uint64_t cgroup) const {
  return !open_cgroup(cgroup_root_, cgroup);
}

Result<void> CgroupLinks::create(const bpf_program* program, int cgroup_fd, const fs::path& pin,
                                 Link& link) const {
  UniqueFd fresh(bpf_link_create(bpf_program__fd(program), cgroup_fd,
                                 bpf_program__expected_attach_type(program), nullptr));
  if (!fresh) return std::unexpected(system_error("make link " + pin.string(), errno));
  auto pinned = replace_pin(fresh.get(), pin);
  if (!pinned) return std::unexpected(pinned.error());
  link = {std::move(fresh), *pinned};
  return {};
}

Result<bool> CgroupLinks::attach_program(const bpf_program* program, int cgroup_fd,
                                         std::uint64_t cgroup, Link& link) const {
  const fs::path pin = directory_of(cgroup) / bpf_program__name(program);
  if (!link.fd) link = {UniqueFd(bpf_obj_get(pin.c_str())), pin_inode(pin)};
  // Somebody may have detached the link, or pinned something else in its place.
  if (state_of(link.fd.get()).cgroup == cgroup) {
    if (bpf_link_update(link.fd.get(), bpf_program__fd(program), nullptr) != 0)
      return std::unexpected(system_error("update link " + pin.string(), errno));
    if (pin_inode(pin) == link.pin) return false;
    auto pinned = replace_pin(link.fd.get(), pin);
    if (!pinned) return std::unexpected(pinned.error());
    link.pin = *pinned;
    return false;
  }
  if (auto created = create(program, cgroup_fd, pin, link); !created)
    return std::unexpected(created.error());
  return true;
}

Result<void> CgroupLinks::attach(std::uint64_t cgroup) {
  Result<UniqueFd> cgroup_fd = open_cgroup(cgroup_root_, cgroup);
  if (!cgroup_fd) return std::unexpected(cgroup_fd.error());
  const fs::path directory = directory_of(cgroup);
  if (auto made = make_directory(directory); !made) return made;
  Links& links = held_[cgroup];
  std::vector<std::string> fresh;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object_) {
    const std::string name = bpf_program__name(program);
    Result<bool> is_new = attach_program(program, cgroup_fd->get(), cgroup, links[name]);
    if (!is_new) {
      links.erase(name);
      for (const std::string& made : fresh) {
        remove_link(directory / made);
        links.erase(made);
      }
      ::rmdir(directory.c_str());  // fails, as it should, if older links are left
      if (links.empty()) held_.erase(cgroup);
      return std::unexpected(is_new.error());
    }
    if (*is_new) fresh.push_back(name);
  }
  remove_unknown(cgroup);
  return {};
}

void CgroupLinks::hold(std::uint64_t cgroup) {
  Links& links = held_[cgroup];
  for (const fs::path& pin : entries(directory_of(cgroup)))
    if (UniqueFd fd(bpf_obj_get(pin.c_str())); state_of(fd.get()).cgroup == cgroup)
      links[pin.filename()] = {std::move(fd), pin_inode(pin)};
}

// Links of programs that an older version had and this one has not.
void CgroupLinks::remove_unknown(std::uint64_t cgroup) {
  for (const fs::path& pin : entries(directory_of(cgroup)))
    if (bpf_object__find_program_by_name(object_, pin.filename().c_str()) == nullptr)
      remove_link(pin);
  std::erase_if(held_[cgroup], [&](const auto& entry) {
    return bpf_object__find_program_by_name(object_, entry.first.c_str()) == nullptr;
  });
}

Result<void> CgroupLinks::move(const std::string& program, const Link& link,
                               bpf_object* object) const {
  const bpf_program* to = bpf_object__find_program_by_name(object, program.c_str());
  // A link that somebody has detached is repair()'s.
  if (to == nullptr || bpf_link_update(link.fd.get(), bpf_program__fd(to), nullptr) == 0 ||
      errno == ENOLINK)
    return {};
  return std::unexpected(system_error("move a link to the new " + program, errno));
}

Result<void> CgroupLinks::use(bpf_object* object) {
  Result<void> moved;
  for (const auto& [cgroup, links] : held_)
    for (const auto& [program, link] : links)
      if (moved) moved = move(program, link, object);
  if (moved) {
    object_ = object;
    return moved;
  }
  for (const auto& [cgroup, links] : held_)
    for (const auto& [program, link] : links)
      if (auto back = move(program, link, object_); !back)
        moved.error().text += "; and back: " + back.error().message();
  return moved;
}

// Empty: nothing was wrong.
Result<std::string> CgroupLinks::repair_link(const bpf_program* program, std::uint64_t cgroup,
                                             Link& link) const {
  const fs::path pin = directory_of(cgroup) / bpf_program__name(program);
  const LinkState state = state_of(link.fd.get());
  if (state.cgroup != cgroup) {
    Result<UniqueFd> cgroup_fd = open_cgroup(cgroup_root_, cgroup);
    if (!cgroup_fd) return std::string();  // gone with all its links
    if (auto made = make_directory(pin.parent_path()); !made) return std::unexpected(made.error());
    if (auto created = create(program, cgroup_fd->get(), pin, link); !created)
      return std::unexpected(created.error());
    return "the program was detached from the cgroup: attached again";
  }
  if (state.program != program_id(program)) {
    if (bpf_link_update(link.fd.get(), bpf_program__fd(program), nullptr) != 0)
      return std::unexpected(system_error("update link " + pin.string(), errno));
    return "the link ran another program: moved back";
  }
  const ino_t present = pin_inode(pin);
  if (present == link.pin) return std::string();
  if (auto made = make_directory(pin.parent_path()); !made) return std::unexpected(made.error());
  auto pinned = replace_pin(link.fd.get(), pin);
  if (!pinned) return std::unexpected(pinned.error());
  link.pin = *pinned;
  return std::string(present == 0 ? "the pin was removed: pinned again"
                                  : "another object was pinned there: replaced");
}

std::vector<std::string> CgroupLinks::repair(std::uint64_t cgroup,
                                             std::vector<std::string>& problems) {
  std::vector<std::string> repaired;
  const auto held = held_.find(cgroup);
  if (held == held_.end()) return repaired;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object_) {
    const std::string name = bpf_program__name(program);
    auto done = repair_link(program, cgroup, held->second[name]);
    if (!done)
      problems.push_back(done.error().message());
    else if (!done->empty())
      repaired.push_back("link " + (directory_of(cgroup) / name).string() + ": " + *done);
  }
  return repaired;
}

Result<void> CgroupLinks::remove(std::uint64_t cgroup) {
  if (const auto held = held_.find(cgroup); held != held_.end()) {
    for (const auto& [program, link] : held->second) (void)bpf_link_detach(link.fd.get());
    held_.erase(held);
  }
  const fs::path directory = directory_of(cgroup);
  std::ranges::for_each(entries(directory), remove_link);
  if (::rmdir(directory.c_str()) != 0 && errno != ENOENT)
    return std::unexpected(system_error("remove " + directory.string(), errno));
  return {};
}

}  // namespace mapgate::datapath
