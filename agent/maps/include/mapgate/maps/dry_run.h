// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_set.hpp>

#include <mapgate/maps/row.h>
#include <mapgate/reconciler/operations.h>
#include <mapgate/reconciler/table.h>

namespace mapgate::maps {

// What a resync would do. Rows whose changes are still on their way count as wrong or missing.
struct DryRunReport {
  enum class Fault : std::uint8_t { kWrong, kMissing, kUnknown };

  std::uint64_t right = 0;  // would be adopted, or is known already
  // Would be repaired: there is another value, or none.
  std::uint64_t wrong = 0;
  std::uint64_t missing = 0;
  std::uint64_t unknown = 0;                    // would be removed
  std::vector<std::pair<RowKey, Fault>> first;  // of the faults, as many as asked for
};

// Compares maps with a table, and changes neither. In slices, beside a reconciler or without one.
// It needs 9 to 18 bytes for each element until it ends. What changes meanwhile may be reported as
// it was or as it is.
//
// `operations` must not be those of a reconciler, which has a scan of its own there: make others on
// the same maps. Both must outlive it.
class DryRun {
 public:
  using Table = reconciler::Table<RowKey, RowValue, RowKeyHash>;

  DryRun(reconciler::Operations<RowKey, RowValue>& operations, Table& table, std::size_t max_rows);

  // Looks at up to about `max` elements or rows; true when that was the end. Not after an error.
  [[nodiscard]] std::expected<bool, reconciler::OperationError> next(std::size_t max);
  // So far.
  [[nodiscard]] const DryRunReport& report() const { return report_; }

 private:
  enum class Phase : std::uint8_t { kStart, kScan, kRows };

  void compare(const RowKey& key, const RowValue& value);
  void fault(const RowKey& key, DryRunReport::Fault fault, std::uint64_t& count);
  [[nodiscard]] bool look_for_missing(std::size_t max);

  reconciler::Operations<RowKey, RowValue>& operations_;
  Table& table_;
  std::optional<Table::Reader> rows_;
  std::size_t max_rows_;
  Phase phase_ = Phase::kStart;
  std::vector<std::pair<RowKey, RowValue>> found_;
  boost::unordered_flat_set<std::uint64_t> seen_;  // by hash: two keys of one are one to it
  DryRunReport report_;
};

}  // namespace mapgate::maps
