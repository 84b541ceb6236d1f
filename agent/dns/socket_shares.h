// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/intrusive/list.hpp>
#include <cstddef>
#include <unordered_map>

#include "agent/dns/flow_source.h"

namespace mapgate::dns {

class SharedSocket;

// Divides a number of sockets among the workloads whose queries open them, so that one which asks
// many resolvers leaves the others theirs. Outlives its sockets.
class SocketShares {
 public:
  SocketShares(std::size_t sockets, std::size_t sockets_per_workload)
      : limit_(sockets), limit_per_workload_(sockets_per_workload) {}
  SocketShares(const SocketShares&) = delete;
  SocketShares& operator=(const SocketShares&) = delete;

  // Whether the workload may open one more. At its share, an idle socket of its own goes for it. At
  // the limit for all, one of the workload that has the most goes: an idle one, or, if that has
  // more than one more than this workload, the one that was used longest ago.
  [[nodiscard]] bool make_room(WorkloadId workload);

 private:
  friend SharedSocket;
  using Hook =
      boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
  struct Share;

  std::size_t count(WorkloadId workload) const;
  bool close_idle(WorkloadId workload);

  const std::size_t limit_;
  const std::size_t limit_per_workload_;
  std::size_t open_ = 0;
  std::unordered_map<WorkloadId, Share> shares_;  // those that are not empty
};

// A socket that counts against a workload's share for as long as it lives.
class SharedSocket : public SocketShares::Hook {
 public:
  SharedSocket(SocketShares& shares, WorkloadId workload);
  virtual ~SharedSocket();
  SharedSocket(const SharedSocket&) = delete;
  SharedSocket& operator=(const SharedSocket&) = delete;

  [[nodiscard]] virtual bool idle() const = 0;
  // Ends what waits for it with kLimited, and destroys it.
  virtual void close() = 0;

 protected:
  void note_use();

 private:
  SocketShares& shares_;
  const WorkloadId workload_;
};

struct SocketShares::Share {
  // The one that was used longest ago comes first.
  boost::intrusive::list<SharedSocket, boost::intrusive::base_hook<Hook>,
                         boost::intrusive::constant_time_size<false>>
      sockets;
  std::size_t count = 0;
};

}  // namespace mapgate::dns
