// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <boost/unordered/unordered_flat_map.hpp>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "agent/dns/datagrams.h"
#include "agent/dns/message.h"
#include "agent/dns/session.h"
#include "agent/dns/socket_address.h"
#include "agent/dns/tcp_client.h"
#include "agent/dns/udp_upstream.h"

namespace mapgate::dns {
namespace {

constexpr int kListenBacklog = 256;
constexpr int kReceiveBuffer = 4 << 20;
constexpr int kBatchesPerTurn = 8;  // then others get their turn
constexpr std::chrono::milliseconds kAcceptRetry{100};

// Counts what is in work, in all and by workload, up to limits.
class Quota {
 public:
  Quota(std::size_t max_total, std::size_t max_per_workload)
      : max_total_(max_total), max_per_workload_(max_per_workload) {}

  [[nodiscard]] bool take(WorkloadId workload) {
    if (total_ >= max_total_) return false;
    std::size_t& taken = by_workload_[workload];
    if (taken >= max_per_workload_) return false;
    ++taken;
    ++total_;
    return true;
  }
  void give_back(WorkloadId workload) {
    const auto found = by_workload_.find(workload);
    if (--found->second == 0) by_workload_.erase(found);
    --total_;
  }
  [[nodiscard]] std::size_t total() const { return total_; }

 private:
  std::size_t max_total_;
  std::size_t max_per_workload_;
  std::size_t total_ = 0;
  boost::unordered_flat_map<WorkloadId, std::size_t> by_workload_;
};

// A session's part of the quota, and its client's knowledge of it.
class Admission {
 public:
  Admission(Quota& quota, WorkloadId workload, Client& client)
      : quota_(quota), workload_(workload), client_(client), admitted_(quota.take(workload)) {
    if (admitted_) client_.session_started();
  }
  ~Admission() {
    if (!admitted_) return;
    quota_.give_back(workload_);
    client_.session_ended();
  }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  explicit operator bool() const { return admitted_; }

 private:
  Quota& quota_;
  WorkloadId workload_;
  Client& client_;
  bool admitted_;
};

std::unexpected<std::string> socket_error(const char* what, const SocketAddress& address) {
  const int error = errno;
  return std::unexpected(std::string("DNS proxy: cannot ") + what + " on " +
                         (address.family() == AF_INET ? "127.0.0.1" : "[::1]") + ": " +
                         std::strerror(error));
}

// The address need not be there yet: in a new container's network, loopback comes up later.
void allow_missing_address(int fd, int family) {
  const int on = 1;
  static_cast<void>(family == AF_INET
                        ? setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on)
                        : setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on));
}

// Where sockets are bound.
struct Place {
  sockets::NetworkNamespace network;
  bool may_lack_loopback = false;
};

// A bound socket of the loopback address, on `preferred` or else any free port. No descriptor: the
// machine has no such address family.
std::expected<int, std::string> bind_loopback(const Place& place, int family, int type,
                                              std::uint16_t preferred) {
  SocketAddress address = SocketAddress::loopback(family, preferred);
  const int fd = place.network.open_socket(family, type);
  if (fd < 0 && errno == EAFNOSUPPORT) return -1;
  if (fd < 0) return socket_error("make a socket", address);
  const int on = 1;
  if (place.may_lack_loopback) allow_missing_address(fd, family);
  if (family == AF_INET6)
    static_cast<void>(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
  if (type == SOCK_STREAM)
    static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (preferred != 0 && ::bind(fd, address.data(), address.size()) == 0) return fd;
  address = SocketAddress::loopback(family, 0);
  if (::bind(fd, address.data(), address.size()) == 0) return fd;
  auto error = socket_error("bind", address);
  const bool no_family = family == AF_INET6 && errno == EADDRNOTAVAIL;
  ::close(fd);
  if (no_family) return -1;
  return error;
}

std::uint16_t local_port(int fd) {
  SocketAddress address;
  socklen_t size = SocketAddress::capacity();
  return getsockname(fd, address.data(), &size) == 0 ? address.endpoint().port : std::uint16_t{0};
}

bool is_transfer(std::uint16_t type) {
  return type == kTypeAxfr || type == kTypeIxfr;
}

}  // namespace

class Proxy::Implementation {
 public:
  Implementation(boost::asio::io_context& io, const ProxyOptions& options, FlowSource& flows,
                 AnswerGate& gate, RandomSource& random)
      : io_(io),
        options_(options),
        flows_(flows),
        gate_(gate),
        random_(random),
        quota_(options.max_sessions, options.max_sessions_per_workload),
        tcp_quota_(options.max_tcp_connections, options.max_tcp_connections_per_workload),
        batches_(io),
        upstream_shares_(options.max_upstream_sockets, options.max_upstream_sockets_per_workload),
        deadlines_(io, options.upstream_timeout) {}

  ~Implementation() {
    for (const auto& [client, entry] : tcp_clients_) entry.owner->stop();
    sessions_.destroy_all();
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  [[nodiscard]] std::expected<void, std::string> open() {
    auto ports = open_site(options_.network, {}, options_.preferred_ports);
    if (!ports) return std::unexpected(ports.error());
    ports_ = *ports;
    return {};
  }

  [[nodiscard]] std::expected<ProxyPorts, std::string> open_site(NetworkId id, Place place,
                                                                 const ProxyPorts& preferred) {
    auto site = std::make_shared<Site>(*this, id, std::move(place));
    ProxyPorts ports;
    for (std::uint32_t slot = 0; slot < MG_DNS_SLOTS; ++slot) {
      if (auto done = open_udp(*site, AF_INET, slot, preferred.udp4[slot], ports.udp4[slot]); !done)
        return std::unexpected(done.error());
      if (auto done = open_udp(*site, AF_INET6, slot, preferred.udp6[slot], ports.udp6[slot]);
          !done)
        return std::unexpected(done.error());
    }
    if (auto done = open_tcp(*site, AF_INET, preferred.tcp4, ports.tcp4); !done)
      return std::unexpected(done.error());
    if (auto done = open_tcp(*site, AF_INET6, preferred.tcp6, ports.tcp6); !done)
      return std::unexpected(done.error());
    sites_.emplace(id, std::move(site));
    return ports;
  }

  void close_site(NetworkId id) {
    const auto found = sites_.find(id);
    if (found == sites_.end()) return;
    // Sessions that hold an answer keep it until they end, which takes no longer than a hold.
    const std::shared_ptr<Site> site = std::move(found->second);
    sites_.erase(found);
    site->listeners.clear();
    std::vector<std::shared_ptr<TcpClient>> clients;
    for (const auto& [client, entry] : tcp_clients_)
      if (entry.network == id) clients.push_back(entry.owner);
    for (const auto& client : clients) client->close();
    site->udp_upstream.abandon();
  }

  void take_query(NetworkId id, std::uint32_t slot, const Endpoint& client, MessageView query) {
    const auto found = sites_.find(id);
    if (found == sites_.end()) return;
    const int family = client.address.is_v4() ? AF_INET : AF_INET6;
    for (const auto& port : found->second->udp_ports)
      if (port->slot == slot && port->family == family) take(*port, SocketAddress(client), query);
  }

  [[nodiscard]] const ProxyPorts& ports() const { return ports_; }
  [[nodiscard]] std::size_t sessions() const { return quota_.total(); }
  [[nodiscard]] ProxyCounters counters() const {
    ProxyCounters result = counters_;
    result.answers_unmatched = upstream_counters_.unmatched;
    result.answers_wrong_question = upstream_counters_.wrong_question;
    result.answers_malformed = upstream_counters_.malformed;
    result.send_failures = batches_.failures();
    return result;
  }

 private:
  struct Site;

  // One UDP port: its socket and what it is about to send.
  struct UdpPort {
    UdpPort(Implementation& proxy, Site& site_of, int fd, int address_family,
            std::uint32_t slot_number)
        : site(site_of),
          family(address_family),
          slot(slot_number),
          descriptor(proxy.io_, fd, [this, &proxy] { proxy.receive(*this); }),
          sender(proxy.batches_, fd) {
      descriptor.want_read();
    }
    Site& site;
    const int family;
    const std::uint32_t slot;
    Descriptor descriptor;
    DatagramSender sender;
  };

  class UdpClient final : public Client {
   public:
    UdpClient(Implementation& proxy, UdpPort& port, const SocketAddress& address)
        : proxy_(proxy), site_(port.site.shared_from_this()), port_(port), address_(address) {}
    [[nodiscard]] std::optional<Flow> flow() override {
      return proxy_.flows_.find({Transport::kUdp, port_.slot, address_.endpoint(), site_->id});
    }
    [[nodiscard]] Upstream& upstream() override { return site_->udp_upstream; }
    void send(Message reply, SendWaiter* waiter) override {
      port_.sender.send(std::move(reply), address_, waiter);
    }

   private:
    Implementation& proxy_;
    const std::shared_ptr<Site> site_;
    UdpPort& port_;
    const SocketAddress address_;
  };

  struct Listener {
    Listener(Implementation& proxy, Site& site_of, int fd)
        : site(site_of),
          descriptor(proxy.io_, fd, [this, &proxy] { proxy.accept(*this); }),
          retry(proxy.io_, [this] { descriptor.want_read(); }) {
      descriptor.want_read();
    }
    Site& site;
    Descriptor descriptor;
    Alarm retry;
  };

  // What the proxy has in one network namespace.
  struct Site : std::enable_shared_from_this<Site> {
    Site(Implementation& proxy, NetworkId network_id, Place where)
        : id(network_id),
          place(std::move(where)),
          udp_upstream(proxy.io_, place.network, proxy.upstream_shares_, proxy.flows_,
                       proxy.random_, proxy.receiver_, proxy.batches_, proxy.deadlines_,
                       proxy.upstream_counters_) {}
    const NetworkId id;
    const Place place;
    UdpUpstream udp_upstream;
    std::vector<std::unique_ptr<UdpPort>> udp_ports;
    std::vector<std::unique_ptr<Listener>> listeners;
  };

  std::expected<void, std::string> open_udp(Site& site, int family, std::uint32_t slot,
                                            std::uint16_t preferred, std::uint16_t& port) {
    const auto fd = bind_loopback(site.place, family, SOCK_DGRAM, preferred);
    if (!fd) return std::unexpected(fd.error());
    if (*fd < 0) return {};
    // More than rmem_max only with privilege; without it a burst may be cut short.
    if (setsockopt(*fd, SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBuffer, sizeof kReceiveBuffer) != 0)
      static_cast<void>(
          setsockopt(*fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer));
    port = local_port(*fd);
    site.udp_ports.push_back(std::make_unique<UdpPort>(*this, site, *fd, family, slot));
    return {};
  }

  std::expected<void, std::string> open_tcp(Site& site, int family, std::uint16_t preferred,
                                            std::uint16_t& port) {
    const auto fd = bind_loopback(site.place, family, SOCK_STREAM, preferred);
    if (!fd) return std::unexpected(fd.error());
    if (*fd < 0) return {};
    if (::listen(*fd, kListenBacklog) != 0) {
      auto error = socket_error("listen", SocketAddress::loopback(family, 0));
      ::close(*fd);
      return error;
    }
    port = local_port(*fd);
    site.listeners.push_back(std::make_unique<Listener>(*this, site, *fd));
    return {};
  }

  void receive(UdpPort& port) {
    const std::shared_ptr<Site> site = port.site.shared_from_this();
    const SendBatches::Batch batch(batches_);
    for (int turn = 0; turn < kBatchesPerTurn; ++turn) {
      const int count = receiver_.receive(port.descriptor.fd());
      if (count <= 0) break;
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
        take(port, receiver_.source(i), receiver_.bytes(i));
      if (static_cast<std::size_t>(count) < DatagramReceiver::kBatch) break;
    }
    port.descriptor.want_read();
  }

  void take(UdpPort& port, const SocketAddress& source, MessageView query) {
    ++counters_.queries_udp;
    if (query.size() > options_.max_query_size) {
      ++counters_.oversized;
      return;
    }
    sessions_.start(serve(std::make_shared<UdpClient>(*this, port, source),
                          Message(query.begin(), query.end()), TimePoint::clock::now()));
  }

  void accept(Listener& listener) {
    for (;;) {
      SocketAddress address;
      socklen_t size = SocketAddress::capacity();
      const int fd =
          ::accept4(listener.descriptor.fd(), address.data(), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        accept_client(listener.site, fd, address.endpoint());
      } else if (errno == EAGAIN) {
        listener.descriptor.want_read();
        return;
      } else if (errno != EINTR && errno != ECONNABORTED) {
        // Out of descriptors or memory: the listener would be ready again at once.
        listener.retry.set(TimePoint::clock::now() + kAcceptRetry);
        return;
      }
    }
  }

  void accept_client(const Site& site, int fd, const Endpoint& source) {
    const std::optional<Flow> flow = flows_.find({Transport::kTcp, 0, source, site.id});
    if (!flow || !tcp_quota_.take(flow->workload)) {
      ++counters_.tcp_rejected;
      ::close(fd);
      return;
    }
    ++counters_.tcp_connections;
    const int no_delay = 1;
    static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay));
    auto client = std::make_shared<TcpClient>(
        io_, fd, *flow,
        TcpClientLimits{options_.tcp_idle_timeout, options_.max_query_size, options_.max_pipelined},
        std::make_unique<TcpUpstream>(io_, site.place.network, flows_, random_, deadlines_,
                                      upstream_counters_),
        TcpClient::Callbacks{.on_query =
                                 [this](std::shared_ptr<TcpClient> from, MessageView query) {
                                   ++counters_.queries_tcp;
                                   sessions_.start(serve(std::move(from),
                                                         Message(query.begin(), query.end()),
                                                         TimePoint::clock::now()));
                                 },
                             .on_oversized = [this] { ++counters_.oversized; },
                             .on_closed =
                                 [this](TcpClient& closed) {
                                   tcp_quota_.give_back(closed.workload());
                                   tcp_clients_.erase(&closed);
                                 }});
    tcp_clients_.emplace(client.get(), TcpEntry{client, site.id});
    client->start();
  }

  // Whether this is a query of a workload's; counts if not.
  bool accept(const std::optional<Flow>& flow, const std::optional<Query>& parsed) {
    if (!flow) ++counters_.unknown_flows;
    if (flow && !parsed) ++counters_.malformed;
    return flow && parsed;
  }

  // What the proxy answers without asking the policy.
  std::optional<ReplyCode> check(const Query& query) {
    if (query.opcode != 0 || (query.question && is_transfer(query.question->type))) {
      ++counters_.not_implemented;
      return ReplyCode::kNotImplemented;
    }
    if (!query.question) {
      ++counters_.format_errors;
      return ReplyCode::kFormatError;
    }
    return std::nullopt;
  }

  // Why the policy does not allow the query; nothing: it does. Says so to the gate.
  std::optional<DenialReason> judge(const Flow& flow, const Question& question,
                                    const Verdict& verdict) {
    std::optional<DenialReason> reason;
    if (!gate_.may_ask(flow.workload, flow.resolver.address)) {
      reason = DenialReason::kResolver;
    } else if (!verdict.may_resolve) {
      reason = DenialReason::kName;
    }
    if (!reason) return reason;
    if (verdict.audit) ++counters_.audited;
    gate_.denied({flow.workload, question.name, flow.resolver.address, *reason, verdict.audit});
    return reason;
  }

  // The answer to a query that is not allowed; nothing: there is none. A resolver is always
  // refused: that a name does not exist would be news about the name, and the client is to try its
  // next resolver.
  std::optional<Message> deny(MessageView query, const Query& parsed, DenialReason reason,
                              DeniedNameAnswer answer) {
    if (reason == DenialReason::kResolver) {
      ++counters_.resolvers_refused;
    } else if (answer == DeniedNameAnswer::kDrop) {
      ++counters_.denied_dropped;
      return std::nullopt;
    } else if (answer == DeniedNameAnswer::kNxdomain) {
      ++counters_.denied_nxdomain;
      return make_name_error(query, parsed);
    } else {
      ++counters_.refused;
    }
    return make_reply(query, parsed, ReplyCode::kRefused);
  }

  void reply(Client& client, MessageView query, const Query& parsed, ReplyCode code) {
    client.send(make_reply(query, parsed, code), nullptr);
  }

  // One query, from its arrival to its answer.
  Session serve(std::shared_ptr<Client> client, Message query, TimePoint arrived) {
    const std::optional<Flow> flow = client->flow();
    const std::optional<Query> parsed = parse_query(query);
    if (!accept(flow, parsed)) co_return;
    if (const std::optional<ReplyCode> code = check(*parsed)) {
      reply(*client, query, *parsed, *code);
      co_return;
    }
    const Question& question = *parsed->question;
    const Verdict verdict = gate_.judge(flow->workload, question.name);
    const std::optional<DenialReason> denial = judge(*flow, question, verdict);
    if (denial && !verdict.audit) {
      if (auto answer = deny(query, *parsed, *denial, verdict.on_denied_name))
        client->send(*std::move(answer), nullptr);
      co_return;
    }
    const Admission admission(quota_, flow->workload, *client);
    if (!admission) {
      ++counters_.overloaded;
      reply(*client, query, *parsed, ReplyCode::kServerFailure);
      co_return;
    }

    Exchange exchange(client->upstream(), *flow, query, question);
    const ExchangeStatus status = co_await exchange;
    if (status != ExchangeStatus::kAnswered) {
      if (count_failure(status)) reply(*client, query, *parsed, ReplyCode::kServerFailure);
      co_return;
    }
    if (reply_code(exchange.answer()) == ReplyCode::kServerFailure) ++counters_.answers_servfail;
    set_message_id(exchange.answer(), message_id(query));
    if (exchange.addresses().empty() || denial) {
      ++counters_.answers_passed;
      client->send(std::move(exchange.answer()), nullptr);
      co_return;
    }

    Hold hold(gate_, {flow->workload, question.name, exchange.addresses()});
    const HoldResult held = co_await hold;
    AnswerRecord record{.workload = flow->workload,
                        .name = question.name,
                        .type = question.type,
                        .addresses = exchange.addresses(),
                        .hold = held,
                        .query_arrived = arrived,
                        .upstream_answered = exchange.answered()};
    const std::optional<OnGateTimeout> action = decide(held.outcome, verdict);
    record.released = !action || *action == OnGateTimeout::kRelease;
    if (action != OnGateTimeout::kDrop) {
      Send send(*client, record.released ? std::move(exchange.answer())
                                         : make_reply(query, *parsed, ReplyCode::kServerFailure));
      const std::optional<TimePoint> sent = co_await send;
      record.answer_sent = sent.value_or(TimePoint{});
    }
    gate_.answered(record);
  }

  // Counts an exchange that gave no answer; says whether the client hears of it.
  bool count_failure(ExchangeStatus status) {
    if (status == ExchangeStatus::kTimedOut) ++counters_.upstream_timeouts;
    if (status == ExchangeStatus::kFailed) ++counters_.upstream_failures;
    if (status == ExchangeStatus::kLimited) ++counters_.upstream_limited;
    return status == ExchangeStatus::kFailed || status == ExchangeStatus::kLimited;
  }

  void count_hold(HoldOutcome outcome) {
    switch (outcome) {
      case HoldOutcome::kTimedOut:
        ++counters_.holds_timed_out;
        break;
      case HoldOutcome::kOverloaded:
        ++counters_.holds_overloaded;
        break;
      default:
        ++counters_.holds_failed;
    }
  }

  // Counts a hold's outcome; says what to do about one that did not open.
  std::optional<OnGateTimeout> decide(HoldOutcome outcome, const Verdict& verdict) {
    if (outcome == HoldOutcome::kOpened) {
      ++counters_.answers_released;
      return std::nullopt;
    }
    count_hold(outcome);
    OnGateTimeout action = verdict.on_gate_timeout;
    // A flood of answers must not become a way past the gate.
    if (outcome == HoldOutcome::kOverloaded) action = OnGateTimeout::kServfail;
    if (verdict.audit) action = OnGateTimeout::kRelease;
    switch (action) {
      case OnGateTimeout::kServfail:
        ++counters_.held_servfail;
        break;
      case OnGateTimeout::kRelease:
        ++counters_.held_released;
        break;
      case OnGateTimeout::kDrop:
        ++counters_.held_dropped;
        break;
    }
    return action;
  }

  boost::asio::io_context& io_;
  const ProxyOptions options_;
  FlowSource& flows_;
  AnswerGate& gate_;
  RandomSource& random_;
  ProxyPorts ports_;  // in the process's own network
  ProxyCounters counters_;
  UpstreamCounters upstream_counters_;
  Quota quota_;
  Quota tcp_quota_;
  DatagramReceiver receiver_;
  SendBatches batches_;
  SocketShares upstream_shares_;
  Deadlines deadlines_;
  boost::unordered_flat_map<NetworkId, std::shared_ptr<Site>> sites_;
  struct TcpEntry {
    std::shared_ptr<TcpClient> owner;
    NetworkId network = 0;
  };
  boost::unordered_flat_map<TcpClient*, TcpEntry> tcp_clients_;
  Sessions sessions_;
};

Proxy::Proxy(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
Proxy::~Proxy() = default;

std::expected<std::unique_ptr<Proxy>, std::string> Proxy::create(boost::asio::io_context& io,
                                                                 const ProxyOptions& options,
                                                                 FlowSource& flows,
                                                                 AnswerGate& gate,
                                                                 RandomSource& random) {
  auto implementation = std::make_unique<Implementation>(io, options, flows, gate, random);
  if (auto opened = implementation->open(); !opened) return std::unexpected(opened.error());
  return std::unique_ptr<Proxy>(new Proxy(std::move(implementation)));
}

const ProxyPorts& Proxy::ports() const {
  return implementation_->ports();
}
std::expected<ProxyPorts, std::string> Proxy::add_network(NetworkId id,
                                                          sockets::NetworkNamespace network,
                                                          const ProxyPorts& preferred) {
  return implementation_->open_site(id, {std::move(network), true}, preferred);
}
void Proxy::remove_network(NetworkId id) {
  implementation_->close_site(id);
}
void Proxy::take_query(NetworkId id, std::uint32_t slot, const Endpoint& client,
                       MessageView query) {
  implementation_->take_query(id, slot, client, query);
}
ProxyCounters Proxy::counters() const {
  return implementation_->counters();
}
std::size_t Proxy::sessions() const {
  return implementation_->sessions();
}

}  // namespace mapgate::dns
