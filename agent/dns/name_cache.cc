// SPDX-License-Identifier: Apache-2.0
#include "agent/dns/name_cache.h"

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <boost/functional/hash.hpp>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>
#include <string>
#include <tuple>

namespace mapgate::dns {
namespace {

namespace intrusive = boost::intrusive;

struct Name;
struct Address;

struct OfName;
struct OfAddress;
struct OfWorkload;
struct OfAll;
template <typename Tag>
using ListHook =
    intrusive::list_base_hook<intrusive::tag<Tag>, intrusive::link_mode<intrusive::auto_unlink>>;
using ExpiryHook = intrusive::set_base_hook<intrusive::link_mode<intrusive::auto_unlink>,
                                            intrusive::optimize_size<true>>;

// That one name holds one address open.
struct Pair : ListHook<OfName>,
              ListHook<OfAddress>,
              ListHook<OfWorkload>,
              ListHook<OfAll>,
              ExpiryHook {
  Name* name = nullptr;
  Address* address = nullptr;
  TimePoint expires{};
  TimePoint last_resolved{};
};

struct ByExpiry {
  using type = TimePoint;
  type operator()(const Pair& pair) const { return pair.expires; }
};

template <typename Tag>
using PairList = intrusive::list<Pair, intrusive::base_hook<ListHook<Tag>>,
                                 intrusive::constant_time_size<false>>;
using ExpiryIndex =
    intrusive::multiset<Pair, intrusive::base_hook<ExpiryHook>, intrusive::key_of_value<ByExpiry>,
                        intrusive::constant_time_size<false>>;

// What a limit counts, and which pair goes first when it is reached: the one that was resolved
// least recently, of those whose address is not in use if there are any.
template <typename Tag>
class EvictionList {
 public:
  void insert(Pair& pair) {
    ++size_;
    append(pair);
  }
  // The last one to go among its like: it was just resolved, or its use began or ended.
  void renew(Pair& pair) {
    static_cast<ListHook<Tag>&>(pair).unlink();
    append(pair);
  }
  void erase(Pair& pair) {
    --size_;
    static_cast<ListHook<Tag>&>(pair).unlink();
  }
  [[nodiscard]] Pair& front() { return idle_.empty() ? in_use_.front() : idle_.front(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (PairList<Tag>* list : {&idle_, &in_use_})
      for (Pair& pair : *list) visit(pair);
  }

 private:
  void append(Pair& pair);

  PairList<Tag> idle_;
  PairList<Tag> in_use_;
  std::size_t size_ = 0;
};

struct NameKey {
  WorkloadId workload;
  std::string_view text;
  friend bool operator==(const NameKey&, const NameKey&) = default;
};
using AddressKey = WorkloadAddress;

struct Name {
  WorkloadId workload = 0;
  std::string text;
  std::uint64_t port_sets = 0;
  EvictionList<OfName> pairs;

  [[nodiscard]] NameKey key() const { return {workload, text}; }
};

struct Address {
  WorkloadId workload = 0;
  policy::IpAddress address;
  PairList<OfAddress> pairs;
  std::uint64_t published = 0;  // the port sets that were last reported
  // The pair of the name "" has port sets of its own: those that the address was adopted with.
  std::uint64_t adopted = 0;
  bool changed = false;
  bool in_use = false;

  [[nodiscard]] AddressKey key() const { return {workload, address}; }
  [[nodiscard]] std::uint64_t port_sets() const {
    std::uint64_t all = 0;
    for (const PortSetsCount& entry : counts_) all |= entry.port_sets;
    return all;
  }
  void count(std::uint64_t port_sets) {
    const auto found = std::ranges::find(counts_, port_sets, &PortSetsCount::port_sets);
    if (found != counts_.end()) {
      ++found->names;
    } else {
      counts_.push_back({port_sets, 1});
    }
  }
  void uncount(std::uint64_t port_sets) {
    const auto found = std::ranges::find(counts_, port_sets, &PortSetsCount::port_sets);
    if (--found->names == 0) counts_.erase(found);
  }

 private:
  // Thousands of names may share an address, but few distinct port sets do.
  struct PortSetsCount {
    std::uint64_t port_sets;
    std::size_t names;
  };
  boost::container::small_vector<PortSetsCount, 1> counts_;
};

template <typename Tag>
void EvictionList<Tag>::append(Pair& pair) {
  (pair.address->in_use ? in_use_ : idle_).push_back(pair);
}

std::size_t hash_of(const NameKey& key) {
  std::size_t seed = std::hash<std::string_view>{}(key.text);
  boost::hash_combine(seed, key.workload);
  return seed;
}
std::size_t hash_of(const AddressKey& key) {
  std::size_t seed = hash_value(key.address);
  boost::hash_combine(seed, key.workload);
  return seed;
}

// A set of owned entries that are found by their key.
template <typename Entry, typename Key>
struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(const Key& key) const { return hash_of(key); }
  std::size_t operator()(const std::unique_ptr<Entry>& entry) const {
    return hash_of(entry->key());
  }
};
template <typename Entry, typename Key>
struct KeyEqual {
  using is_transparent = void;
  bool operator()(const Key& key, const std::unique_ptr<Entry>& entry) const {
    return key == entry->key();
  }
  bool operator()(const std::unique_ptr<Entry>& entry, const Key& key) const {
    return key == entry->key();
  }
  bool operator()(const std::unique_ptr<Entry>& a, const std::unique_ptr<Entry>& b) const {
    return a->key() == b->key();
  }
};
template <typename Entry, typename Key>
using EntrySet =
    boost::unordered_flat_set<std::unique_ptr<Entry>, KeyHash<Entry, Key>, KeyEqual<Entry, Key>>;

// What tells pairs apart.
struct PairHash {
  using is_transparent = void;
  std::size_t operator()(const std::pair<const Name*, const Address*>& key) const {
    std::size_t seed = 0;
    boost::hash_combine(seed, key.first);
    boost::hash_combine(seed, key.second);
    return seed;
  }
  std::size_t operator()(const Pair* pair) const { return (*this)({pair->name, pair->address}); }
};
struct PairEqual {
  using is_transparent = void;
  bool operator()(const std::pair<const Name*, const Address*>& key, const Pair* pair) const {
    return key.first == pair->name && key.second == pair->address;
  }
  bool operator()(const Pair* pair, const std::pair<const Name*, const Address*>& key) const {
    return (*this)(key, pair);
  }
  bool operator()(const Pair* a, const Pair* b) const { return a == b; }
};
using PairSet = boost::unordered_flat_set<Pair*, PairHash, PairEqual>;

std::uint64_t port_sets_of(const Pair& pair) {
  return pair.name->text.empty() ? pair.address->adopted : pair.name->port_sets;
}

CachedAddress listed(const Pair& pair) {
  return {pair.name->workload, pair.name->text, pair.address->address,
          port_sets_of(pair),  pair.expires,    pair.last_resolved};
}

NameCacheLimits consistent(NameCacheLimits limits) {
  limits.max_per_name = std::max<std::size_t>(limits.max_per_name, 1);
  limits.max_per_workload = std::max(limits.max_per_workload, limits.max_per_name);
  limits.max_total = std::max(limits.max_total, limits.max_per_workload);
  limits.max_ttl = std::max(limits.max_ttl, limits.min_ttl);
  return limits;
}

}  // namespace

class NameCache::Implementation {
 public:
  Implementation(const NameCacheLimits& limits, Visitor dropped)
      : limits_(consistent(limits)), dropped_(std::move(dropped)) {}
  ~Implementation() {
    for (Pair* pair : pairs_) delete pair;
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  bool learn(const NameKey& key, std::uint64_t port_sets, std::span<const LearnedAddress> addresses,
             TimePoint now, AddressChanges& changes) {
    if (addresses.size() > limits_.max_per_name) {
      ++counters_.too_many;
      return false;
    }
    // The root, "", has no addresses.
    if (addresses.empty() || port_sets == 0 || key.text.empty()) return true;
    Name& name = obtain_name(key);
    set_port_sets(name, port_sets);
    for (const LearnedAddress& learned : addresses)
      hold(name, learned.address, now + lifetime(learned.ttl), now);
    publish(changes);
    return true;
  }

  void restore(const CachedAddress& entry, AddressChanges& changes) {
    if (entry.port_sets == 0) return;
    if (entry.name.empty()) {
      adopt({entry.workload, entry.address}, entry.port_sets, entry.expires, entry.last_resolved,
            changes);
      return;
    }
    Name& name = obtain_name({entry.workload, entry.name});
    set_port_sets(name, entry.port_sets);
    hold(name, entry.address, entry.expires, entry.last_resolved);
    publish(changes);
  }

  void adopt(const AddressKey& key, std::uint64_t port_sets, TimePoint expires, TimePoint now,
             AddressChanges& changes) {
    if (port_sets == 0 || addresses_.contains(key)) return;
    obtain_address(key).adopted = port_sets;
    hold(obtain_name({key.workload, ""}), key.address, expires, now);
    publish(changes);
  }
  [[nodiscard]] TimePoint adopted_until(TimePoint now) const {
    return now + lifetime(std::chrono::seconds(0));
  }

  void expire(TimePoint now, std::size_t max_pairs, AddressChanges& changes) {
    for (; max_pairs > 0 && !by_expiry_.empty(); --max_pairs) {
      Pair& pair = *by_expiry_.begin();
      if (pair.expires > now) break;
      ++counters_.expired;
      drop(pair);
    }
    publish(changes);
  }
  [[nodiscard]] std::optional<TimePoint> next_expiry() const {
    if (by_expiry_.empty()) return std::nullopt;
    return by_expiry_.begin()->expires;
  }

  void forget(const NameKey& key, AddressChanges& changes) {
    const auto found = names_.find(key);
    if (found == names_.end()) return;
    forget_pairs(**found);
    publish(changes);
  }

  void repolicy(const PortSetsOf& port_sets, AddressChanges& changes) {
    std::vector<Name*> names;
    names.reserve(names_.size());
    for (const auto& name : names_) names.push_back(name.get());
    for (Name* name : names) {
      if (name->text.empty()) {
        repolicy_adopted(*name, port_sets);
        continue;
      }
      const std::uint64_t wanted = port_sets(name->workload, name->text, name->port_sets);
      if (wanted == 0) {
        forget_pairs(*name);
      } else {
        set_port_sets(*name, wanted);
      }
    }
    publish(changes);
  }

  void set_in_use(std::span<const WorkloadAddress> addresses) {
    const auto idle = std::exchange(in_use_, {});
    for (const WorkloadAddress& key : addresses)
      if (const auto found = addresses_.find(key); found != addresses_.end())
        in_use_.insert(found->get());
    for (Address* address : idle)
      if (!in_use_.contains(address)) set_in_use(*address, false);
    for (Address* address : in_use_)
      if (!address->in_use) set_in_use(*address, true);
  }
  [[nodiscard]] bool is_crowded() const { return crowded_ > 0; }

  [[nodiscard]] std::uint64_t port_sets(const AddressKey& key) const {
    const auto found = addresses_.find(key);
    return found == addresses_.end() ? 0 : (*found)->published;
  }

  void for_each(const Visitor& visit) const {
    for (const auto& name : names_)
      name->pairs.for_each([&](const Pair& pair) { visit(listed(pair)); });
  }
  void for_each_of_name(const NameKey& key, const Visitor& visit) const {
    const auto found = names_.find(key);
    if (found == names_.end()) return;
    (*found)->pairs.for_each([&](const Pair& pair) { visit(listed(pair)); });
  }
  void for_each_of_address(const AddressKey& key, const Visitor& visit) const {
    const auto found = addresses_.find(key);
    if (found == addresses_.end()) return;
    for (const Pair& pair : (*found)->pairs) visit(listed(pair));
  }

  [[nodiscard]] std::size_t names() const { return names_.size(); }
  [[nodiscard]] std::size_t addresses() const { return addresses_.size(); }
  [[nodiscard]] std::size_t pairs() const { return pairs_.size(); }
  [[nodiscard]] const NameCacheCounters& counters() const { return counters_; }

 private:
  [[nodiscard]] std::chrono::seconds lifetime(std::chrono::seconds ttl) const {
    return std::clamp(ttl, limits_.min_ttl, limits_.max_ttl) + limits_.grace;
  }

  Name& obtain_name(const NameKey& key) {
    if (const auto found = names_.find(key); found != names_.end()) return **found;
    auto name = std::make_unique<Name>();
    name->workload = key.workload;
    name->text = key.text;
    return **names_.insert(std::move(name)).first;
  }
  Address& obtain_address(const AddressKey& key) {
    if (const auto found = addresses_.find(key); found != addresses_.end()) return **found;
    auto address = std::make_unique<Address>();
    address->workload = key.workload;
    address->address = key.address;
    return **addresses_.insert(std::move(address)).first;
  }

  void hold(Name& name, const policy::IpAddress& address, TimePoint expires, TimePoint now) {
    Address& entry = obtain_address({name.workload, address});
    if (const auto found = pairs_.find(std::pair<const Name*, const Address*>(&name, &entry));
        found != pairs_.end()) {
      Pair* pair = *found;
      ++counters_.refreshed;
      pair->last_resolved = now;
      // A shorter TTL than before does not take away what was promised.
      if (expires > pair->expires) set_expiry(*pair, expires);
      renew(*pair);
      return;
    }
    make_room(name);
    ++counters_.learned;
    auto* pair = new Pair;
    pair->name = &name;
    pair->address = &entry;
    pair->expires = expires;
    pair->last_resolved = now;
    insert(*pair);
  }

  void insert(Pair& pair) {
    pair.name->pairs.insert(pair);
    pair.address->pairs.push_back(pair);
    pair.address->count(port_sets_of(pair));
    mark_changed(*pair.address);
    workloads_[pair.name->workload].insert(pair);
    all_.insert(pair);
    crowded_ += lists_near_their_limit(pair);
    pairs_.insert(&pair);
    by_expiry_.insert(pair);
  }

  void set_expiry(Pair& pair, TimePoint expires) {
    by_expiry_.erase(by_expiry_.iterator_to(pair));
    pair.expires = expires;
    by_expiry_.insert(pair);
  }

  void set_in_use(Address& address, bool in_use) {
    address.in_use = in_use;
    for (Pair& pair : address.pairs) renew(pair);
  }

  void renew(Pair& pair) {
    pair.name->pairs.renew(pair);
    workloads_[pair.name->workload].renew(pair);
    all_.renew(pair);
  }

  void make_room(Name& name) {
    EvictionList<OfWorkload>& workload = workloads_[name.workload];
    if (name.pairs.size() >= limits_.max_per_name) {
      ++counters_.evicted_per_name;
      evict(name.pairs.front(), name);
    } else if (workload.size() >= limits_.max_per_workload) {
      ++counters_.evicted_per_workload;
      evict(workload.front(), name);
    } else if (all_.size() >= limits_.max_total) {
      ++counters_.evicted_total;
      evict(all_.front(), name);
    }
  }

  void evict(Pair& pair, const Name& kept) {
    if (pair.address->in_use) ++counters_.evicted_in_use;
    drop(pair, &kept);
  }

  // Of the lists that the pair is in, those that have just enough to be crowded.
  [[nodiscard]] std::size_t lists_near_their_limit(const Pair& pair) {
    const auto is_near = [](std::size_t size, std::size_t limit) {
      return size == limit - limit / 4;
    };
    return std::size_t{is_near(pair.name->pairs.size(), limits_.max_per_name)} +
           std::size_t{is_near(workloads_[pair.name->workload].size(), limits_.max_per_workload)} +
           std::size_t{is_near(all_.size(), limits_.max_total)};
  }

  // Removes a pair that nobody asked to remove.
  void drop(Pair& pair, const Name* kept = nullptr) {
    if (dropped_) dropped_(listed(pair));
    remove(pair, kept);
  }

  // Takes a pair out; also its name with its last pair, unless it is `kept`. Its address stays
  // until publish().
  void remove(Pair& pair, const Name* kept = nullptr) {
    Name& name = *pair.name;
    mark_changed(*pair.address);
    pair.address->uncount(port_sets_of(pair));
    pairs_.erase(&pair);
    const auto workload = workloads_.find(name.workload);
    crowded_ -= lists_near_their_limit(pair);
    name.pairs.erase(pair);
    workload->second.erase(pair);
    all_.erase(pair);
    delete &pair;
    if (workload->second.size() == 0) workloads_.erase(workload);
    if (name.pairs.size() == 0 && &name != kept) names_.erase(names_.find(name.key()));
  }

  void forget_pairs(Name& name) {
    for (std::size_t left = name.pairs.size(); left > 0; --left) {
      ++counters_.forgotten;
      remove(name.pairs.front());
    }
  }

  void set_port_sets(Name& name, std::uint64_t port_sets) {
    if (name.port_sets == port_sets) return;
    name.pairs.for_each([&](Pair& pair) {
      pair.address->uncount(name.port_sets);
      pair.address->count(port_sets);
      mark_changed(*pair.address);
    });
    name.port_sets = port_sets;
  }

  void repolicy_adopted(Name& name, const PortSetsOf& port_sets) {
    std::vector<Pair*> pairs;
    pairs.reserve(name.pairs.size());
    name.pairs.for_each([&](Pair& pair) { pairs.push_back(&pair); });
    for (Pair* pair : pairs) {
      const std::uint64_t wanted = port_sets(name.workload, "", pair->address->adopted);
      if (wanted == 0) {
        ++counters_.forgotten;
        remove(*pair);
      } else {
        pair->address->uncount(pair->address->adopted);
        pair->address->count(wanted);
        pair->address->adopted = wanted;
        mark_changed(*pair->address);
      }
    }
  }

  void mark_changed(Address& address) {
    if (address.changed) return;
    address.changed = true;
    changed_.push_back(&address);
  }

  // Reports what the call that ends here has changed.
  void publish(AddressChanges& changes) {
    for (Address* address : changed_) {
      address->changed = false;
      const std::uint64_t port_sets = address->port_sets();
      if (port_sets != address->published) {
        address->published = port_sets;
        changes.push_back({address->workload, address->address, port_sets});
      }
      if (!address->pairs.empty()) continue;
      in_use_.erase(address);
      addresses_.erase(addresses_.find(address->key()));
    }
    changed_.clear();
  }

  NameCacheLimits limits_;
  const Visitor dropped_;
  NameCacheCounters counters_;
  EntrySet<Name, NameKey> names_;
  EntrySet<Address, AddressKey> addresses_;
  boost::unordered_flat_map<WorkloadId, EvictionList<OfWorkload>> workloads_;
  PairSet pairs_;
  EvictionList<OfAll> all_;
  boost::unordered_flat_set<Address*> in_use_;
  std::size_t crowded_ = 0;  // lists with three quarters of their limit or more
  ExpiryIndex by_expiry_;
  std::vector<Address*> changed_;
};

NameCache::NameCache(const NameCacheLimits& limits, Visitor dropped)
    : implementation_(std::make_unique<Implementation>(limits, std::move(dropped))) {}
NameCache::~NameCache() = default;

bool NameCache::learn(WorkloadId workload, std::string_view name, std::uint64_t port_sets,
                      std::span<const LearnedAddress> addresses, TimePoint now,
                      AddressChanges& changes) {
  return implementation_->learn({workload, name}, port_sets, addresses, now, changes);
}

void NameCache::restore(const CachedAddress& entry, AddressChanges& changes) {
  implementation_->restore(entry, changes);
}

void NameCache::adopt(WorkloadId workload, const policy::IpAddress& address,
                      std::uint64_t port_sets, TimePoint now, AddressChanges& changes) {
  implementation_->adopt({workload, address}, port_sets, implementation_->adopted_until(now), now,
                         changes);
}

void NameCache::expire(TimePoint now, std::size_t max_pairs, AddressChanges& changes) {
  implementation_->expire(now, max_pairs, changes);
}

std::optional<TimePoint> NameCache::next_expiry() const {
  return implementation_->next_expiry();
}

void NameCache::forget(WorkloadId workload, std::string_view name, AddressChanges& changes) {
  implementation_->forget({workload, name}, changes);
}

void NameCache::set_in_use(std::span<const WorkloadAddress> addresses) {
  implementation_->set_in_use(addresses);
}

bool NameCache::is_crowded() const {
  return implementation_->is_crowded();
}

void NameCache::repolicy(const PortSetsOf& port_sets, AddressChanges& changes) {
  implementation_->repolicy(port_sets, changes);
}

std::uint64_t NameCache::port_sets(WorkloadId workload, const policy::IpAddress& address) const {
  return implementation_->port_sets({workload, address});
}

void NameCache::for_each(const Visitor& visit) const {
  implementation_->for_each(visit);
}

void NameCache::for_each_of_name(WorkloadId workload, std::string_view name,
                                 const Visitor& visit) const {
  implementation_->for_each_of_name({workload, name}, visit);
}

void NameCache::for_each_of_address(WorkloadId workload, const policy::IpAddress& address,
                                    const Visitor& visit) const {
  implementation_->for_each_of_address({workload, address}, visit);
}

std::size_t NameCache::names() const {
  return implementation_->names();
}
std::size_t NameCache::addresses() const {
  return implementation_->addresses();
}
std::size_t NameCache::pairs() const {
  return implementation_->pairs();
}
const NameCacheCounters& NameCache::counters() const {
  return implementation_->counters();
}

}  // namespace mapgate::dns
