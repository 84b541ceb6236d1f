// SPDX-License-Identifier: Apache-2.0
#include "agent/sockets/socket_diag.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>
#include <vector>

namespace mapgate::sockets {
namespace {

using Visitor = std::function<void(const inet_diag_msg&, std::uint64_t cgroup)>;

constexpr std::uint32_t state_bit(int state) {
  return 1U << static_cast<unsigned>(state);
}
// What has a peer, and can still send to it. UDP sockets that are connected are "established".
constexpr std::uint32_t kWithPeer = state_bit(TCP_ESTABLISHED) | state_bit(TCP_SYN_SENT) |
                                    state_bit(TCP_FIN_WAIT1) | state_bit(TCP_FIN_WAIT2) |
                                    state_bit(TCP_CLOSE_WAIT) | state_bit(TCP_LAST_ACK) |
                                    state_bit(TCP_CLOSING);

// Of one netlink message; the kernel fills up to 32 KiB of a dump at a time.
constexpr std::size_t kBufferSize = 32U << 10;

std::error_code last_error() {
  return {errno, std::system_category()};
}

Endpoint to_endpoint(std::uint8_t family, const __be32 (&address)[4], __be16 port) {
  Endpoint endpoint{.address = {}, .port = ntohs(port)};
  if (family == AF_INET) {
    endpoint.address[10] = endpoint.address[11] = 0xff;
    std::memcpy(&endpoint.address[12], &address[0], 4);
  } else {
    std::memcpy(endpoint.address.data(), address, sizeof address);
  }
  return endpoint;
}

std::uint64_t cgroup_of(const nlmsghdr* header) {
  std::uint64_t cgroup = 0;
  const auto find = [](const nlattr* attribute, void* found) {
    const bool is_cgroup = mnl_attr_get_type(attribute) == INET_DIAG_CGROUP_ID &&
                           mnl_attr_get_payload_len(attribute) == sizeof cgroup;
    if (is_cgroup) *static_cast<std::uint64_t*>(found) = mnl_attr_get_u64(attribute);
    return MNL_CB_OK;
  };
  mnl_attr_parse(header, sizeof(inet_diag_msg), find, &cgroup);
  return cgroup;
}

int hand_to_visitor(const nlmsghdr* header, void* visitor) {
  if (mnl_nlmsg_get_payload_len(header) < sizeof(inet_diag_msg)) return MNL_CB_OK;
  inet_diag_msg message{};
  std::memcpy(&message, mnl_nlmsg_get_payload(header), sizeof message);
  (*static_cast<const Visitor*>(visitor))(message, cgroup_of(header));
  return MNL_CB_OK;
}

// Sends one request and takes the answers until their end.
std::expected<void, std::error_code> run(mnl_socket* socket, std::uint32_t sequence,
                                         std::uint16_t type, std::uint16_t flags,
                                         const inet_diag_req_v2& request, const Visitor& visit) {
  std::vector<char> buffer(kBufferSize);
  nlmsghdr* header = mnl_nlmsg_put_header(buffer.data());
  header->nlmsg_type = type;
  header->nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
  header->nlmsg_seq = sequence;
  std::memcpy(mnl_nlmsg_put_extra_header(header, sizeof request), &request, sizeof request);
  if (mnl_socket_sendto(socket, header, header->nlmsg_len) < 0)
    return std::unexpected(last_error());
  const unsigned port = mnl_socket_get_portid(socket);
  for (int next = MNL_CB_OK; next > MNL_CB_STOP;) {
    const ssize_t length = mnl_socket_recvfrom(socket, buffer.data(), buffer.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return std::unexpected(last_error());
    next = mnl_cb_run(buffer.data(), static_cast<std::size_t>(length), sequence, port,
                      hand_to_visitor, const_cast<Visitor*>(&visit));
    if (next < MNL_CB_STOP) return std::unexpected(last_error());
  }
  return {};
}

Connection to_connection(std::uint8_t protocol, const inet_diag_msg& message,
                         std::uint64_t cgroup) {
  const inet_diag_sockid& id = message.id;
  return {.protocol = protocol,
          .local = to_endpoint(message.idiag_family, id.idiag_src, id.idiag_sport),
          .remote = to_endpoint(message.idiag_family, id.idiag_dst, id.idiag_dport),
          .cgroup = cgroup,
          .cookie = std::uint64_t{id.idiag_cookie[1]} << 32 | id.idiag_cookie[0],
          .kernel_id = id,
          .family = message.idiag_family};
}

}  // namespace

void SocketDiag::Close::operator()(mnl_socket* socket) const {
  mnl_socket_close(socket);
}

std::expected<SocketDiag, std::error_code> SocketDiag::open(const NetworkNamespace& network) {
  UniqueFd fd(network.open_socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG));
  if (!fd || ::fcntl(fd.get(), F_SETFL, 0) != 0) return std::unexpected(last_error());
  mnl_socket* socket = mnl_socket_fdopen(fd.get());
  if (socket == nullptr) return std::unexpected(last_error());
  (void)fd.release();
  SocketDiag diag(socket);
  if (mnl_socket_bind(socket, 0, MNL_SOCKET_AUTOPID) < 0) return std::unexpected(last_error());
  return diag;
}

std::expected<void, std::error_code> SocketDiag::for_each(
    const std::function<void(const Connection&)>& visit) {
  std::set<std::uint16_t> listening;
  const auto dump = [&](std::uint8_t protocol, std::uint32_t states, const Visitor& each) {
    std::expected<void, std::error_code> result;
    for (const std::uint8_t family : {std::uint8_t{AF_INET}, std::uint8_t{AF_INET6}}) {
      inet_diag_req_v2 request{};
      request.sdiag_family = family;
      request.sdiag_protocol = protocol;
      request.idiag_states = states;
      if (result)
        result = run(socket_.get(), ++sequence_, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request, each);
    }
    return result;
  };
  auto result =
      dump(IPPROTO_TCP, state_bit(TCP_LISTEN), [&](const inet_diag_msg& message, std::uint64_t) {
        listening.insert(ntohs(message.id.idiag_sport));
      });
  for (const std::uint8_t protocol : {std::uint8_t{IPPROTO_TCP}, std::uint8_t{IPPROTO_UDP}}) {
    if (!result) return result;
    result = dump(protocol, kWithPeer, [&](const inet_diag_msg& message, std::uint64_t cgroup) {
      Connection connection = to_connection(protocol, message, cgroup);
      connection.accepted = protocol == IPPROTO_TCP && listening.contains(connection.local.port);
      visit(connection);
    });
  }
  return result;
}

std::expected<void, std::error_code> SocketDiag::destroy(const Connection& connection) {
  inet_diag_req_v2 request{};
  request.sdiag_family = connection.family;
  request.sdiag_protocol = connection.protocol;
  request.idiag_states = ~0U;
  request.id = connection.kernel_id;
  return run(socket_.get(), ++sequence_, SOCK_DESTROY, NLM_F_ACK, request, {});
}

}  // namespace mapgate::sockets
