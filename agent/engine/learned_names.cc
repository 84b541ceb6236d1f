// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/learned_names.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "bpf/abi.h"

namespace mapgate::engine {
namespace {

// Pairs that expire in one go, so that a crowd of them does not stop the loop.
constexpr std::size_t kExpirySlice = 1024;
// Pairs that are remembered after they have expired.
constexpr std::size_t kMaxExpired = 65536;
// How often the store is told to drop what has expired.
constexpr auto kPurgeInterval = std::chrono::minutes(1);

dns::TimePoint now() {
  return std::chrono::steady_clock::now();
}

dns::NameCacheLimits limits_of(const policy::DnsSettings& settings) {
  dns::NameCacheLimits limits;
  limits.min_ttl = settings.min_ttl;
  limits.max_ttl = settings.max_ttl;
  limits.grace = settings.grace;
  limits.max_per_name = settings.max_addresses_per_name;
  limits.max_per_workload = settings.max_addresses_per_workload;
  return limits;
}

policy::IpAddress address_of(const mg_address_key& key) {
  policy::IpAddress::Bytes bytes;
  std::copy_n(key.address, bytes.size(), bytes.begin());
  return policy::IpAddress(bytes);
}

std::uint64_t port_sets_of(const maps::RowValue& value) {
  mg_port_sets sets{};
  std::copy_n(value.data(), std::min(value.size(), sizeof sets),
              reinterpret_cast<std::byte*>(&sets));
  return sets.port_sets;
}

}  // namespace

std::uint64_t used_port_sets(const policy::CompiledPolicy& policy, std::string_view workload) {
  const auto entry = policy.used_allocations().find(workload);
  if (entry == policy.used_allocations().end()) return 0;
  std::uint64_t bits = 0;
  for (const auto& [text, bit] : entry->second.port_sets) bits |= std::uint64_t{1} << bit;
  return bits;
}

LearnedNames::LearnedNames(boost::asio::io_context& io, Table& table, state::Store& store,
                           Connections& connections, spdlog::logger& log,
                           const policy::MapIndices& indices, const policy::DnsSettings& settings)
    : table_(table),
      store_(store),
      log_(log),
      indices_(indices),
      settings_(settings),
      expired_(kMaxExpired),
      cache_(limits_of(settings), [this](const dns::CachedAddress& entry) { expired_.add(entry); }),
      in_use_(io, connections, cache_),
      timer_(io) {}

void LearnedNames::restore(const policy::CompiledPolicy& policy,
                           const AdoptingOperations::Snapshot& maps,
                           Table::Transaction& transaction) {
  dns::AddressChanges changes;
  const RowKeys revoked = restore_stored(policy, changes);
  // Without the allocations of then, nobody knows what the bits of then stood for.
  if (!store_.moved_aside()) adopt(policy, maps, revoked, changes);
  stage(changes, transaction);
  expire_at_next();
}

LearnedNames::RowKeys LearnedNames::restore_stored(const policy::CompiledPolicy& policy,
                                                   dns::AddressChanges& changes) {
  RowKeys revoked;
  const auto system_now = std::chrono::system_clock::now();
  auto learned = store_.load_learned(system_now);
  if (!learned) {
    log_.error("learned names are lost: {}", learned.error().text);
    return revoked;
  }
  for (state::LearnedAddress& entry : *learned) {
    const policy::CompiledWorkload* workload = policy.find_workload(entry.workload);
    const std::uint64_t port_sets =
        workload == nullptr ? 0 : policy.match(workload->id, entry.name).port_sets;
    if (port_sets == 0) {
      if (workload != nullptr) revoked.insert(key_of(workload->id, entry.address));
      store_.forget(std::move(entry));
      continue;
    }
    const auto left =
        std::chrono::duration_cast<dns::TimePoint::duration>(entry.expires - system_now);
    cache_.restore({workload->id, entry.name, entry.address, port_sets, now() + left, now()},
                   changes);
  }
  return revoked;
}

void LearnedNames::adopt(const policy::CompiledPolicy& policy,
                         const AdoptingOperations::Snapshot& maps, const RowKeys& revoked,
                         dns::AddressChanges& changes) {
  for (const auto& [key, value] : maps) {
    if (key.map() != indices_.addresses || revoked.contains(key)) continue;
    const auto found = key.as<mg_address_key>();
    const auto workload = policy.workloads().find(found.workload);
    if (workload == policy.workloads().end()) continue;
    const std::uint64_t port_sets =
        port_sets_of(value) & used_port_sets(policy, workload->second.name);
    if (port_sets != 0) cache_.adopt(found.workload, address_of(found), port_sets, now(), changes);
  }
}

bool LearnedNames::learn(const dns::HoldRequest& request, std::string_view workload_name,
                         std::uint64_t port_sets, Table::Transaction& transaction) {
  dns::AddressChanges changes;
  if (!cache_.learn(request.workload, request.name, port_sets, request.addresses, now(), changes))
    return false;
  stage(changes, transaction);
  for (const dns::LearnedAddress& learned : request.addresses) {
    transaction.put(key_of(request.workload, learned.address),
                    policy::port_sets_value(cache_.port_sets(request.workload, learned.address)));
  }
  in_use_.watch();
  remember(request, workload_name);
  expire_at_next();
  return true;
}

void LearnedNames::remember(const dns::HoldRequest& request, std::string_view workload_name) {
  const auto at = std::chrono::system_clock::now();
  for (const dns::LearnedAddress& learned : request.addresses) {
    const auto lifetime =
        std::clamp(learned.ttl, settings_.min_ttl, settings_.max_ttl) + settings_.grace;
    store_.learn(
        {std::string(workload_name), std::string(request.name), learned.address, at + lifetime});
  }
}

dns::AddressChanges LearnedNames::repolicy(const dns::NameCache::PortSetsOf& port_sets) {
  dns::AddressChanges changes;
  cache_.repolicy(port_sets, changes);
  return changes;
}

void LearnedNames::forget_revoked(const policy::CompiledPolicy& policy,
                                  const policy::Allocations& allocations) {
  std::map<dns::WorkloadId, std::string_view> workloads;
  for (const auto& [name, allocation] : allocations.workloads())
    workloads.emplace(allocation.id, name);
  cache_.for_each([&](const dns::CachedAddress& entry) {
    if (entry.name.empty() || policy.match(entry.workload, entry.name).port_sets != 0) return;
    store_.forget(
        {std::string(workloads[entry.workload]), std::string(entry.name), entry.address, {}});
  });
}

void LearnedNames::stage(const dns::AddressChanges& changes,
                         Table::Transaction& transaction) const {
  for (const dns::AddressChange& change : changes) {
    maps::RowKey key = key_of(change.workload, change.address);
    if (change.port_sets == 0) {
      transaction.erase(std::move(key));
    } else {
      transaction.put(std::move(key), policy::port_sets_value(change.port_sets));
    }
  }
}

void LearnedNames::expire_at_next() {
  const auto next = cache_.next_expiry();
  if (!next || (timer_at_ && *timer_at_ <= *next)) return;
  timer_at_ = next;
  timer_.expires_at(*next);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    timer_at_.reset();
    expire();
  });
}

void LearnedNames::expire() {
  if (now() - purged_at_ >= kPurgeInterval) {
    purged_at_ = now();
    store_.purge_expired(std::chrono::system_clock::now());
  }
  dns::AddressChanges changes;
  cache_.expire(now(), kExpirySlice, changes);
  auto transaction = table_.begin();
  stage(changes, transaction);
  if (!transaction.empty()) std::move(transaction).commit(now());
  expire_at_next();
}

}  // namespace mapgate::engine
