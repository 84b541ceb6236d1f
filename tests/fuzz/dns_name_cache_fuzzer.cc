// SPDX-License-Identifier: Apache-2.0
// The name cache under any order of operations, compared with what its pairs say.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/dns/name_cache.h"

namespace {

using namespace mapgate;
using dns::TimePoint;
using std::chrono::seconds;

void require(bool condition) {
  if (!condition) std::abort();
}

// Numbers from the input; zeros at its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::uint8_t next() {
    if (rest_.empty()) return 0;
    const std::uint8_t byte = rest_[0];
    rest_ = rest_.subspan(1);
    return byte;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

using Map = std::map<std::pair<dns::WorkloadId, policy::IpAddress>, std::uint64_t>;

policy::IpAddress address_of(std::uint8_t number) {
  policy::IpAddress::Bytes bytes{0x20, 0x01, 0x0d, 0xb8};
  bytes[15] = number % 16;
  return policy::IpAddress(bytes);
}

void step(Input& input, dns::NameCache& cache, TimePoint& now, dns::AddressChanges& changes) {
  const std::uint8_t operation = input.next() % 9;
  const dns::WorkloadId workload = 1 + input.next() % 3U;
  const std::string name(1, static_cast<char>('a' + input.next() % 6));
  now += seconds(input.next());
  switch (operation) {
    case 0:
      return cache.forget(workload, name, changes);
    case 1: {
      const std::uint64_t keep = input.next();
      return cache.repolicy([=](auto, auto, std::uint64_t sets) { return sets & keep; }, changes);
    }
    case 2:
      return cache.expire(now, input.next() % 5, changes);
    case 3:
      return cache.adopt(workload, address_of(input.next()), input.next(), now, changes);
    case 4:
      return cache.restore({workload, name, address_of(input.next()), input.next(),
                            now + seconds(input.next()), now},
                           changes);
    case 8: {
      std::vector<dns::WorkloadAddress> in_use;
      for (std::uint8_t i = input.next() % 6; i > 0; --i)
        in_use.push_back({workload, address_of(input.next())});
      return cache.set_in_use(in_use);
    }
    default: {
      std::vector<dns::LearnedAddress> addresses;
      for (std::uint8_t i = input.next() % 6; i > 0; --i)
        addresses.push_back({address_of(input.next()), seconds(input.next())});
      static_cast<void>(cache.learn(workload, name, input.next(), addresses, now, changes));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dns::NameCacheLimits limits{.min_ttl = seconds(20),
                                    .max_ttl = seconds(200),
                                    .grace = seconds(5),
                                    .max_per_name = 4,
                                    .max_per_workload = 8,
                                    .max_total = 12};
  dns::NameCache cache(limits);
  Map map;
  TimePoint now{std::chrono::hours(1)};
  for (Input input(data, size); !input.empty();) {
    dns::AddressChanges changes;
    step(input, cache, now, changes);
    for (const dns::AddressChange& change : changes) {
      if (change.port_sets == 0) {
        require(map.erase({change.workload, change.address}) == 1);
      } else {
        map[{change.workload, change.address}] = change.port_sets;
      }
    }
    Map expected;
    cache.for_each([&](const dns::CachedAddress& entry) {
      expected[{entry.workload, entry.address}] |= entry.port_sets;
    });
    require(map == expected);
    require(cache.pairs() <= limits.max_total);
    require(cache.next_expiry().has_value() == (cache.pairs() > 0));
  }
  return 0;
}
