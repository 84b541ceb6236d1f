// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <mapgate/reconciler/types.h>

namespace mapgate::reconciler {

struct Backoff {
  Duration min = std::chrono::milliseconds(50);
  Duration max = std::chrono::seconds(30);
};

struct Options {
  // The delay doubles from min to max with each failure in a row, then `jitter` (0 to 1) of it is
  // drawn at random; it stays within [min, max].
  Backoff retry;
  // Of rows that found their target full. They are woken by deletes; this is for room made by
  // others.
  Backoff parked = {std::chrono::seconds(1), std::chrono::seconds(60)};
  double jitter = 0.2;
  std::uint64_t seed = 1;  // of the jitter
  std::size_t max_gates = 1'000'000;
  // Begin by comparing the target with the table: until that scan has ended, well or not, only rows
  // that somebody waits for are attempted, so that what the target holds already is not written
  // again.
  bool start_with_resync = false;
  std::optional<Duration> resync_interval;  // none: only at start and on request
  // False: a resync counts entries that are no rows, and leaves them alone. For a target that
  // others write to as well.
  bool remove_unknown = true;
  std::size_t resync_slice = 1024;  // entries looked at per step

  // Why these options make no sense, or null.
  [[nodiscard]] const char* problem() const;
};

// How much one step may take on. New work and retries do not eat each other's. Somebody who begins
// to wait for a row waits for the batch that is under way: more does not make kernel calls much
// cheaper, and makes that longer.
struct Budget {
  std::size_t new_work = 256;  // and as many rows that somebody waits for
  std::size_t retries = 64;
};

}  // namespace mapgate::reconciler
