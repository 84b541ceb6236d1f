// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/system_resolvers.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "agent/policy/regular_file.h"

namespace mapgate::dns {
namespace {

constexpr std::size_t kMaxFileSize = 64 * 1024;  // what comes behind is not read
constexpr std::chrono::seconds kReadInterval{1};
constexpr std::string_view kBlanks = " \t\r";

// The first word of `text`, which loses it.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
  text.remove_prefix(word.size());
  return word;
}

policy::IpAddress loopback_if_unspecified(const policy::IpAddress& address) {
  if (address == policy::IpAddress::parse("0.0.0.0")) return *policy::IpAddress::parse("127.0.0.1");
  if (address == policy::IpAddress()) return *policy::IpAddress::parse("::1");
  return address;
}

std::string read_file(const std::filesystem::path& path) {
  std::string text(kMaxFileSize, '\0');
  const auto file = policy::RegularFile::open(path.native());
  const auto size = file ? file->read(0, text) : std::unexpected(file.error());
  text.resize(size.value_or(0));
  return text;
}

}  // namespace

std::vector<policy::IpAddress> parse_nameservers(std::string_view resolv_conf) {
  std::vector<policy::IpAddress> addresses;
  while (!resolv_conf.empty()) {
    std::string_view line = resolv_conf.substr(0, resolv_conf.find('\n'));
    resolv_conf.remove_prefix(std::min(line.size() + 1, resolv_conf.size()));
    if (take_word(line) != "nameserver") continue;
    const std::string_view word = take_word(line);
    if (const auto address = policy::IpAddress::parse(word.substr(0, word.find('%'))))
      addresses.push_back(loopback_if_unspecified(*address));
  }
  return addresses;
}

std::vector<std::filesystem::path> SystemResolvers::default_files() {
  return {"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"};
}

bool SystemResolvers::contains(const policy::IpAddress& address, TimePoint now) {
  if (now >= next_read_) {
    next_read_ = now + kReadInterval;
    read();
  }
  return std::ranges::find(resolvers_, address) != resolvers_.end();
}

void SystemResolvers::read() {
  resolvers_.clear();
  for (const std::filesystem::path& file : files_) {
    const std::vector<policy::IpAddress> found = parse_nameservers(read_file(file));
    resolvers_.insert(resolvers_.end(), found.begin(), found.end());
  }
}

}  // namespace mapgate::dns
