// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/denial_log.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "agent/policy/address.h"
#include "agent/policy/port_set.h"

namespace mapgate::engine {
namespace {

std::string_view describe_reason(const mg_denial& denial) {
  switch (denial.reason) {
    case MG_REASON_UNCONFIGURED:
      return "the cgroup is not configured";
    case MG_REASON_ADDRESS:
      return "no rule has the address";
    case MG_REASON_PORT:
      if (policy::is_encrypted_dns(denial.protocol, ntohs(denial.port)))
        return "a rule has the address, but none names port 853: DNS that the proxy cannot read";
      return "a rule has the address, but not the port";
    case MG_REASON_DNS_UNSTEERED:
      return "DNS that cannot be steered to the proxy";
    case MG_REASON_NO_PROXY:
      return "the DNS proxy does not listen";
    case MG_REASON_PROXY_PORT:
      return "to the DNS proxy, but not steered there";
    case MG_REASON_FRAGMENT:
      return "a fragment without its transport header";
    case MG_REASON_TRANSPORT_HIDDEN:
      return "the transport header is missing or too deep";
    case MG_REASON_SOURCE_ROUTE:
      return "a source route";
    case MG_REASON_MALFORMED:
      return "neither IPv4 nor IPv6";
    default:
      return "unknown reason";
  }
}

std::string_view describe_hook(std::uint8_t hook) {
  switch (hook) {
    case MG_HOOK_CONNECT:
      return "connect";
    case MG_HOOK_SENDMSG:
      return "send";
    case MG_HOOK_PACKET:
      return "packet";
    default:
      return "unknown hook";
  }
}

std::string process_name(std::uint32_t pid) {
  if (pid == 0) return {};
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  // A process names itself: nothing of it may end a log line or drive a terminal.
  std::ranges::replace_if(
      name, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return fmt::format("{}[{}]", name.empty() ? "process" : name, pid);
}

}  // namespace

std::string describe_denial(const mg_denial& denial, std::string_view workload,
                            std::string_view process) {
  policy::IpAddress::Bytes bytes;
  std::copy_n(denial.address, bytes.size(), bytes.begin());
  return fmt::format(
      "{}: {} {} to {} ({}){}{}: {}", workload.empty() ? "unknown workload" : workload,
      denial.audited != 0 ? "audit: would deny" : "denied", describe_hook(denial.hook),
      policy::IpAddress(bytes).with_port(ntohs(denial.port)),
      policy::protocol_name(denial.protocol), process.empty() ? "" : " by ", process,
      describe_reason(denial));
}

DenialLog::DenialLog(boost::asio::io_context& io, datapath::Datapath& datapath, WorkloadName name,
                     spdlog::logger& log)
    : datapath_(datapath), name_(std::move(name)), log_(log), events_(io, datapath.denials_fd()) {
  wait();
}

// The descriptor is the datapath's.
DenialLog::~DenialLog() {
  events_.release();
}

void DenialLog::wait() {
  events_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                       if (error || alive.expired()) return;
                       datapath_.consume_denials([this](const mg_denial& denial) { log(denial); });
                       wait();
                     });
}

void DenialLog::log(const mg_denial& denial) {
  ++seen_;
  std::uint64_t suppressed = 0;
  const bool allowed = limit_.allow(std::chrono::steady_clock::now(), suppressed);
  if (suppressed > 0) log_.warn("{} more denials were not logged", suppressed);
  if (allowed)
    log_.warn("{}", describe_denial(denial, name_(denial.workload), process_name(denial.pid)));
}

}  // namespace mapgate::engine
