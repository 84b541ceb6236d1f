// SPDX-License-Identifier: Apache-2.0
#include <mapgate/maps/dry_run.h>

namespace mapgate::maps {

DryRun::DryRun(reconciler::Operations<RowKey, RowValue>& operations, Table& table,
               std::size_t max_rows)
    : operations_(operations), table_(table), max_rows_(max_rows) {}

std::expected<bool, reconciler::OperationError> DryRun::next(std::size_t max) {
  if (phase_ == Phase::kRows) return look_for_missing(max);
  if (phase_ == Phase::kStart) {
    if (auto begun = operations_.scan_begin(); !begun) return std::unexpected(begun.error());
    phase_ = Phase::kScan;
  }
  found_.clear();
  const auto end = operations_.scan_next(max, found_);
  if (!end) return end;
  for (const auto& [key, value] : found_) compare(key, value);
  if (*end) phase_ = Phase::kRows;
  return false;
}

void DryRun::compare(const RowKey& key, const RowValue& value) {
  if (!seen_.insert(RowKeyHash{}(key)).second) return;
  const auto wanted = table_.find(key);
  if (!wanted && operations_.is_absence(key, value)) return;
  if (!wanted)
    fault(key, DryRunReport::Fault::kUnknown, report_.unknown);
  else if (*wanted == value)
    ++report_.right;
  else
    fault(key, DryRunReport::Fault::kWrong, report_.wrong);
}

void DryRun::fault(const RowKey& key, DryRunReport::Fault fault, std::uint64_t& count) {
  ++count;
  if (report_.first.size() < max_rows_) report_.first.emplace_back(key, fault);
}

bool DryRun::look_for_missing(std::size_t max) {
  if (!rows_) rows_.emplace(table_.changes_since(0));
  const auto result = rows_->read(max, [&](const RowKey& key, const RowValue* value, auto) {
    if (value != nullptr && seen_.insert(RowKeyHash{}(key)).second)
      fault(key, DryRunReport::Fault::kMissing, report_.missing);
  });
  if (result == reconciler::ReadResult::kMustRelist) rows_.reset();
  return result == reconciler::ReadResult::kUpToDate;
}

}  // namespace mapgate::maps
