// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mapgate/maps/row.h>
#include <mapgate/reconciler/operations.h>
#include <mapgate/reconciler/reconciler.h>
#include <mapgate/reconciler/table.h>

namespace mapgate::engine {

using Table = reconciler::Table<maps::RowKey, maps::RowValue, maps::RowKeyHash>;
using Reconciler = reconciler::Reconciler<maps::RowKey, maps::RowValue, maps::RowKeyHash>;
using Operation = reconciler::Operation<maps::RowKey, maps::RowValue>;
using Operations = reconciler::Operations<maps::RowKey, maps::RowValue>;

}  // namespace mapgate::engine
