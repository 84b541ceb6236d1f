// SPDX-License-Identifier: Apache-2.0
#include "agent/state/database.h"

#include <cstddef>

namespace mapgate::state {
namespace {

constexpr int kBusyTimeoutMilliseconds = 2000;

StoreErrorKind kind_of(int code) {
  switch (code & 0xff) {
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return StoreErrorKind::kNotWritable;
    case SQLITE_FULL:
      return StoreErrorKind::kDiskFull;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:  // our SQL is fixed, so it is the tables that are not ours
      return StoreErrorKind::kCorrupt;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return StoreErrorKind::kBusy;
    default:
      return StoreErrorKind::kInputOutput;
  }
}

StoreError error_of(sqlite3* database) {
  const int code = sqlite3_extended_errcode(database);
  const char* file = sqlite3_db_filename(database, "main");
  return {.kind = kind_of(code),
          .text = std::string(file == nullptr ? "" : file) + ": " + sqlite3_errmsg(database)};
}

}  // namespace

void Statement::bind(int parameter, std::int64_t value) {
  sqlite3_bind_int64(statement_.get(), parameter, value);
}

void Statement::bind(int parameter, std::string_view value) {
  sqlite3_bind_text64(statement_.get(), parameter, value.data(), value.size(), SQLITE_STATIC,
                      SQLITE_UTF8);
}

void Statement::bind(int parameter, std::span<const std::uint8_t> value) {
  sqlite3_bind_blob64(statement_.get(), parameter, value.data(), value.size(), SQLITE_STATIC);
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return {data, data == nullptr
                    ? 0
                    : static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::span<const std::uint8_t> Statement::bytes(int column) const {
  const auto* data =
      static_cast<const std::uint8_t*>(sqlite3_column_blob(statement_.get(), column));
  return {data, data == nullptr
                    ? 0
                    : static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::expected<bool, StoreError> Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return std::unexpected(error_of(sqlite3_db_handle(statement_.get())));
}

Result Statement::run() {
  const auto stepped = step();
  reset();
  if (!stepped) return std::unexpected(stepped.error());
  return {};
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
}

std::expected<Database, StoreError> Database::open(const std::filesystem::path& file) {
  sqlite3* handle = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(file.c_str(), &handle, flags, nullptr);
  Database database;
  database.database_.reset(handle);
  if (code != SQLITE_OK) {
    return std::unexpected(StoreError{kind_of(code), file.native() + ": " + sqlite3_errstr(code)});
  }
  sqlite3_busy_timeout(handle, kBusyTimeoutMilliseconds);
  return database;
}

Result Database::execute(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return std::unexpected(error_of(database_.get()));
}

std::expected<Statement, StoreError> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()), &statement,
                         nullptr) != SQLITE_OK) {
    return std::unexpected(error_of(database_.get()));
  }
  return Statement(statement);
}

std::expected<std::string, StoreError> Database::query_text(std::string_view sql) {
  auto statement = prepare(sql);
  if (!statement) return std::unexpected(statement.error());
  const auto row = statement->step();
  if (!row) return std::unexpected(row.error());
  return *row ? std::string(statement->text(0)) : std::string();
}

}  // namespace mapgate::state
