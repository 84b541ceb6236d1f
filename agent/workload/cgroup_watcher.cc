// SPDX-License-Identifier: Apache-2.0
#include "agent/workload/cgroup_watcher.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

namespace mapgate::workload {
namespace {

constexpr auto kPollInterval = std::chrono::seconds(1);

std::error_code last_error() {
  return {errno, std::system_category()};
}

// "/a/b", never "/a//b", "/a/", "/a/../b". The root itself is "/".
bool is_canonical(std::string_view path) {
  if (path.empty() || path.front() != '/') return false;
  if (path == "/") return true;
  while (!path.empty()) {
    path.remove_prefix(1);
    const std::string_view component = path.substr(0, path.find('/'));
    if (component.empty() || component == "." || component == "..") return false;
    path.remove_prefix(component.size());
  }
  return true;
}

bool is_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

}  // namespace

std::expected<CgroupId, std::error_code> cgroup_id(const std::filesystem::path& directory) {
  // On 64-bit kernels the inode number of a kernfs directory is its 64-bit node id, which is the
  // cgroup's id.
  static_assert(sizeof(ino_t) == sizeof(CgroupId));
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) return std::unexpected(last_error());
  if (!S_ISDIR(status.st_mode))
    return std::unexpected(std::make_error_code(std::errc::not_a_directory));
  return status.st_ino;
}

std::expected<std::unique_ptr<CgroupWatcher>, std::error_code> CgroupWatcher::create(
    const boost::asio::any_io_executor& executor, std::filesystem::path root, Handler handler) {
  if (const auto id = cgroup_id(root); !id) return std::unexpected(id.error());
  const int inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (inotify < 0) return std::unexpected(last_error());
  std::unique_ptr<CgroupWatcher> watcher(
      new CgroupWatcher(executor, inotify, std::move(root), std::move(handler)));
  watcher->wait_for_events();
  return watcher;
}

CgroupWatcher::CgroupWatcher(const boost::asio::any_io_executor& executor, int inotify,
                             std::filesystem::path root, Handler handler)
    : inotify_(executor, inotify),
      poll_timer_(executor),
      root_(std::move(root)),
      handler_(std::move(handler)) {}

CgroupWatcher::~CgroupWatcher() = default;

std::expected<std::optional<CgroupId>, std::error_code> CgroupWatcher::watch(
    const std::string& path) {
  if (!is_canonical(path))
    return std::unexpected(std::make_error_code(std::errc::invalid_argument));
  const auto [entry, inserted] = paths_.try_emplace(path);
  if (inserted) entry->second = look_up(path);
  return entry->second;
}

void CgroupWatcher::unwatch(const std::string& path) {
  if (paths_.erase(path) != 0) drop_unused_directories();
}

void CgroupWatcher::wait_for_events() {
  inotify_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
        if (error || alive.expired()) return;
        read_events();
        wait_for_events();
      });
}

void CgroupWatcher::read_events() {
  alignas(inotify_event) std::array<char, 16 * 1024> buffer;
  // What changed, collected first: the handler may change what is watched.
  std::vector<std::string> changed;
  for (;;) {
    const ssize_t size = read(inotify_.native_handle(), buffer.data(), buffer.size());
    if (size <= 0) break;  // EAGAIN: that was all
    for (std::size_t offset = 0; offset < static_cast<std::size_t>(size);) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + offset);
      offset += sizeof(inotify_event) + event->len;
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        changed.assign({std::string()});  // events were lost: look at everything
        continue;
      }
      const auto directory = directories_.find(event->wd);
      if (directory == directories_.end()) continue;
      std::string path =
          event->len == 0 ? directory->second : directory->second + "/" + event->name;
      if (is_watched_below(path)) changed.push_back(std::move(path));
      if ((event->mask & IN_IGNORED) != 0) directories_.erase(directory);
    }
  }
  for (const std::string& directory : changed) refresh_below(directory);
}

void CgroupWatcher::refresh_below(std::string_view directory) {
  std::vector<std::string> affected;
  for (auto path = paths_.lower_bound(directory);
       path != paths_.end() && path->first.starts_with(directory); ++path) {
    if (is_below(path->first, directory)) affected.push_back(path->first);
  }
  for (const std::string& path : affected) refresh(path);
}

void CgroupWatcher::refresh(const std::string& path) {
  const auto entry = paths_.find(path);
  if (entry == paths_.end()) return;  // the handler unwatched it
  const std::optional<CgroupId> now = look_up(path);
  const std::optional<CgroupId> before = std::exchange(entry->second, now);
  if (before == now) return;
  if (before) handler_(path, std::nullopt);
  if (now) handler_(path, now);
}

std::optional<CgroupId> CgroupWatcher::look_up(const std::string& path) {
  // Each directory on the way is watched before its child is looked for: a child made in between is
  // seen either here or by its event.
  for (std::size_t slash = 0; slash != std::string::npos && path != "/";
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (!cgroup_id(root_.native() + directory)) return std::nullopt;
    add_directory(directory);
  }
  const auto id = cgroup_id(root_.native() + path);
  return id ? std::optional(*id) : std::nullopt;
}

void CgroupWatcher::add_directory(const std::string& directory) {
  const std::string absolute = root_.native() + directory;
  const WatchDescriptor descriptor = inotify_add_watch(inotify_.native_handle(), absolute.c_str(),
                                                       IN_CREATE | IN_DELETE | IN_ONLYDIR);
  if (descriptor >= 0) {
    directories_.insert_or_assign(descriptor, directory);
  } else if (errno != ENOENT && errno != ENOTDIR) {  // went away just now: its parent's event tells
    degraded_ = last_error();
    poll_while_degraded();
  }
}

void CgroupWatcher::poll_while_degraded() {
  poll_timer_.expires_after(kPollInterval);
  poll_timer_.async_wait(
      [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
        if (error || alive.expired()) return;
        degraded_.clear();
        refresh_below("");
      });
}

bool CgroupWatcher::is_watched_below(std::string_view directory) const {
  for (auto path = paths_.lower_bound(directory);
       path != paths_.end() && path->first.starts_with(directory); ++path) {
    if (is_below(path->first, directory)) return true;
  }
  return false;
}

void CgroupWatcher::drop_unused_directories() {
  for (auto entry = directories_.begin(); entry != directories_.end();) {
    if (is_watched_below(entry->second)) {
      ++entry;
      continue;
    }
    inotify_rm_watch(inotify_.native_handle(), entry->first);
    entry = directories_.erase(entry);
  }
}

}  // namespace mapgate::workload
