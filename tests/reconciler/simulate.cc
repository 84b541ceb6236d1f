// SPDX-License-Identifier: Apache-2.0
// simulate [--seconds N | --schedules N] [--seed S]: runs drawn schedules against the model, see
// simulation.h. Of a failing one it prints the shortest that it can reduce it to, and exits with 1.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "simulation.h"

namespace {

using namespace mapgate::reconciler::simulation;

int report(std::uint64_t seed, const std::string& mismatch) {
  const Schedule reduced = reduce(draw(seed));
  std::cout << "seed " << seed << ": " << mismatch << "\nreduced to " << reduced.size()
            << " events: " << run(reduced).value_or("it passes now") << '\n'
            << describe(reduced);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seconds = std::uint64_t{100} * 365 * 24 * 3600;
  std::uint64_t schedules = UINT64_MAX;
  std::uint64_t seed = 1;
  if (argc % 2 == 0) argc = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--seconds") {
      seconds = value;
    } else if (name == "--schedules") {
      schedules = value;
    } else if (name == "--seed") {
      seed = value;
    } else {
      argc = 0;
    }
  }
  if (argc < 3) {
    std::cerr << "usage: simulate [--seconds N | --schedules N] [--seed S]\n";
    return 2;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::uint64_t done = 0;
  for (; done < schedules && std::chrono::steady_clock::now() < end; ++done) {
    if (const auto mismatch = run(draw(seed + done))) return report(seed + done, *mismatch);
  }
  if (done == 0) {
    std::cerr << "no schedule was run\n";
    return 2;
  }
  std::cout << done << " schedules from seed " << seed << ": all agree with the model\n";
  return 0;
}
