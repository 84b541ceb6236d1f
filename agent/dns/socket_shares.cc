// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/socket_shares.h"

#include <algorithm>

namespace mapgate::dns {

SharedSocket::SharedSocket(SocketShares& shares, WorkloadId workload)
    : shares_(shares), workload_(workload) {
  SocketShares::Share& share = shares_.shares_[workload_];
  share.sockets.push_back(*this);
  ++share.count;
  ++shares_.open_;
}

SharedSocket::~SharedSocket() {
  --shares_.open_;
  const auto share = shares_.shares_.find(workload_);
  unlink();
  if (--share->second.count == 0) shares_.shares_.erase(share);
}

void SharedSocket::note_use() {
  unlink();
  shares_.shares_.find(workload_)->second.sockets.push_back(*this);
}

bool SocketShares::make_room(WorkloadId workload) {
  const std::size_t own = count(workload);
  if (own >= limit_per_workload_) return close_idle(workload);
  if (open_ < limit_) return true;
  const auto most =
      std::ranges::max_element(shares_, {}, [](const auto& entry) { return entry.second.count; });
  if (most == shares_.end()) return false;  // the limit is zero
  if (close_idle(most->first)) return true;
  if (most->second.count <= own + 1) return close_idle(workload);
  most->second.sockets.front().close();
  return true;
}

std::size_t SocketShares::count(WorkloadId workload) const {
  const auto found = shares_.find(workload);
  return found == shares_.end() ? 0 : found->second.count;
}

bool SocketShares::close_idle(WorkloadId workload) {
  const auto found = shares_.find(workload);
  if (found == shares_.end()) return false;
  const auto idle = std::ranges::find_if(found->second.sockets,
                                         [](const SharedSocket& socket) { return socket.idle(); });
  if (idle == found->second.sockets.end()) return false;
  idle->close();
  return true;
}

}  // namespace mapgate::dns
