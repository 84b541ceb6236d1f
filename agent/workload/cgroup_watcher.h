// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

namespace mapgate::workload {

// What the kernel calls this cgroup, see bpf_get_current_cgroup_id(). Never used again while the
// system runs: a cgroup that is removed and made anew has another id.
using CgroupId = std::uint64_t;

// The id of the cgroup (v2) whose directory is `directory`.
[[nodiscard]] std::expected<CgroupId, std::error_code> cgroup_id(
    const std::filesystem::path& directory);

// Follows cgroups by path: those that are there, those that come later, and those that are made
// anew. Nothing is polled, except that paths for which the system has no inotify watch left are
// looked at every second. For one thread: that of its executor.
class CgroupWatcher {
 public:
  // `id` is that of the cgroup which is at `path` now, none when it went away. A cgroup that was
  // replaced is reported as gone, and then as there. May call watch() and unwatch().
  using Handler = std::function<void(const std::string& path, std::optional<CgroupId> id)>;

  // `root` is where cgroup v2 is mounted. Fails when inotify is not to be had or `root` is no
  // directory.
  [[nodiscard]] static std::expected<std::unique_ptr<CgroupWatcher>, std::error_code> create(
      const boost::asio::any_io_executor& executor, std::filesystem::path root, Handler handler);
  ~CgroupWatcher();
  CgroupWatcher(const CgroupWatcher&) = delete;
  CgroupWatcher& operator=(const CgroupWatcher&) = delete;

  // Follows `path`: absolute from the root, without "." and ".." (else invalid_argument). Returns
  // what is there now; the handler hears of every change after that. Watching a path twice is the
  // same as once.
  [[nodiscard]] std::expected<std::optional<CgroupId>, std::error_code> watch(
      const std::string& path);
  void unwatch(const std::string& path);

  // inotify watches in use.
  [[nodiscard]] std::size_t watched_directories() const { return directories_.size(); }
  // The last reason why a directory could not be watched, as long as it cannot.
  [[nodiscard]] std::error_code degraded() const { return degraded_; }

 private:
  using WatchDescriptor = int;
  using WatchedPaths = std::map<std::string, std::optional<CgroupId>, std::less<>>;

  CgroupWatcher(const boost::asio::any_io_executor& executor, int inotify,
                std::filesystem::path root, Handler handler);
  void wait_for_events();
  void read_events();
  void refresh(const std::string& path);
  void refresh_below(std::string_view directory);
  std::optional<CgroupId> look_up(const std::string& path);
  void add_directory(const std::string& directory);
  void drop_unused_directories();
  [[nodiscard]] bool is_watched_below(std::string_view directory) const;
  void poll_while_degraded();

  boost::asio::posix::stream_descriptor inotify_;
  boost::asio::steady_timer poll_timer_;
  const std::filesystem::path root_;
  Handler handler_;
  WatchedPaths paths_;
  std::unordered_map<WatchDescriptor, std::string>
      directories_;  // relative to the root, "" is the root
  std::error_code degraded_;
  // Held weakly by the handlers of the loop: one that is already queued may run after this object
  // is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::workload
