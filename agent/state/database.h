// SPDX-License-Identifier: Apache-2.0
// SQLite behind RAII and typed errors. Internal to agent/state.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "agent/state/store.h"

namespace mapgate::state {

using Result = std::expected<void, StoreError>;

// A prepared statement. Bind all parameters, then step.
class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  // Parameters count from 1. The bytes must stay until the next reset().
  void bind(int parameter, std::int64_t value);
  void bind(int parameter, std::string_view value);
  void bind(int parameter, std::span<const std::uint8_t> value);
  // Columns count from 0, of the row that step() found.
  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] std::string_view text(int column) const;
  [[nodiscard]] std::span<const std::uint8_t> bytes(int column) const;

  // True: there is a row. False: done.
  [[nodiscard]] std::expected<bool, StoreError> step();
  // Steps a statement without rows, and makes it ready for the next use.
  [[nodiscard]] Result run();
  void reset();

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// A connection. One thread at a time.
class Database {
 public:
  // Opens or creates a file.
  [[nodiscard]] static std::expected<Database, StoreError> open(const std::filesystem::path& file);

  [[nodiscard]] Result execute(const char* sql);
  [[nodiscard]] std::expected<Statement, StoreError> prepare(std::string_view sql);
  // The first column of the first row.
  [[nodiscard]] std::expected<std::string, StoreError> query_text(std::string_view sql);

  // Runs `body` in a transaction, which is rolled back if the body or the commit fails.
  template <typename Body>
  [[nodiscard]] Result transaction(Body body) {
    if (auto begun = execute("BEGIN IMMEDIATE"); !begun) return begun;
    Result result = body();
    if (result) result = execute("COMMIT");
    // A failed ROLLBACK means that SQLite has rolled back already.
    if (!result) static_cast<void>(execute("ROLLBACK"));
    return result;
  }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace mapgate::state
