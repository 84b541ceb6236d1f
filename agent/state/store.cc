// SPDX-License-Identifier: Apache-2.0
#include "agent/state/store.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "agent/state/database.h"
#include "agent/state/learned_writer.h"
#include "agent/unique_fd.h"

namespace mapgate::state {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchemaVersion = "1";
constexpr const char* kSchema =
    "CREATE TABLE workloads (name TEXT PRIMARY KEY, id INTEGER NOT NULL UNIQUE) WITHOUT ROWID;"
    "CREATE TABLE port_sets (workload TEXT NOT NULL, port_set TEXT NOT NULL, bit INTEGER NOT NULL,"
    " PRIMARY KEY (workload, port_set), UNIQUE (workload, bit)) WITHOUT ROWID;"
    "CREATE TABLE learned (workload TEXT NOT NULL, name TEXT NOT NULL,"
    " address BLOB NOT NULL CHECK (length(address) = 16), expires INTEGER NOT NULL,"
    " PRIMARY KEY (workload, name, address)) WITHOUT ROWID;"
    "PRAGMA user_version = 1;";

// Sets the connection up and makes sure that the file is a sound database of this version.
Result prepare_database(Database& database, const fs::path& file) {
  const auto corrupt = [&](const std::string& reason) {
    return std::unexpected(StoreError{StoreErrorKind::kCorrupt, file.native() + ": " + reason});
  };
  // The writer's commits do the checkpoints: they wait for the disk, and this connection is the
  // event loop's.
  auto set = database.execute(
      "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0;");
  if (!set) return set;
  const auto check = database.query_text("PRAGMA quick_check(1)");
  if (!check) return std::unexpected(check.error());
  if (*check != "ok") return corrupt(*check);
  const auto version = database.query_text("PRAGMA user_version");
  if (!version) return std::unexpected(version.error());
  if (*version == kSchemaVersion) return {};
  if (*version != "0") {
    return std::unexpected(StoreError{StoreErrorKind::kIncompatible,
                                      file.native() + ": has version " + *version +
                                          ", this mapgate knows " + std::string(kSchemaVersion)});
  }
  return database.transaction([&] { return database.execute(kSchema); });
}

std::expected<policy::Allocations, StoreError> read_allocations(Database& database,
                                                                const fs::path& file) {
  const auto contradiction = [&] {
    return std::unexpected(StoreError{StoreErrorKind::kCorrupt,
                                      file.native() + ": allocations contradict each other"});
  };
  policy::Allocations allocations;
  auto workloads = database.prepare("SELECT name, id FROM workloads");
  if (!workloads) return std::unexpected(workloads.error());
  auto row = workloads->step();
  for (; row && *row; row = workloads->step()) {
    const std::int64_t id = workloads->integer(1);
    if (!std::in_range<std::uint32_t>(id)) return contradiction();
    if (!allocations.restore_workload(workloads->text(0), static_cast<std::uint32_t>(id)))
      return contradiction();
  }
  if (!row) return std::unexpected(row.error());

  auto port_sets = database.prepare("SELECT workload, port_set, bit FROM port_sets");
  if (!port_sets) return std::unexpected(port_sets.error());
  row = port_sets->step();
  for (; row && *row; row = port_sets->step()) {
    const std::int64_t bit = port_sets->integer(2);
    if (!std::in_range<std::uint8_t>(bit)) return contradiction();
    if (!allocations.restore_port_set(port_sets->text(0), port_sets->text(1),
                                      static_cast<std::uint8_t>(bit))) {
      return contradiction();
    }
  }
  if (!row) return std::unexpected(row.error());
  return allocations;
}

// While the descriptor is open no other process has this directory's state. Leaves no file. A
// directory that cannot be opened is not locked: opening the database says what is wrong.
std::expected<UniqueFd, StoreError> lock_directory(const fs::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return std::unexpected(StoreError{
        StoreErrorKind::kBusy, directory.native() + ": another mapgated keeps its state here"});
  return fd;
}

struct Loaded {
  Database database;
  policy::Allocations allocations;
};

std::expected<Loaded, StoreError> load(const fs::path& file) {
  std::error_code error;
  // What SQLite takes for a new database; but we never leave one behind empty.
  if (fs::is_regular_file(file, error) && fs::file_size(file, error) == 0) {
    return std::unexpected(StoreError{StoreErrorKind::kCorrupt, file.native() + ": is empty"});
  }
  auto database = Database::open(file);
  if (!database) return std::unexpected(database.error());
  if (auto prepared = prepare_database(*database, file); !prepared)
    return std::unexpected(prepared.error());
  auto allocations = read_allocations(*database, file);
  if (!allocations) return std::unexpected(allocations.error());
  return Loaded{*std::move(database), *std::move(allocations)};
}

constexpr std::array<const char*, 3> kSuffixes = {"-wal", "-shm",
                                                  ""};  // the database itself goes last

std::expected<fs::path, StoreError> move_aside(const fs::path& file) {
  std::error_code error;
  fs::path target;
  for (int n = 1; target.empty() || fs::exists(target, error); ++n) {
    target = fs::path(file) += ".corrupt-" + std::to_string(n);
  }
  for (const char* suffix : kSuffixes) {
    fs::rename(fs::path(file) += suffix, fs::path(target) += suffix, error);
    if (error && error != std::errc::no_such_file_or_directory) {
      return std::unexpected(
          StoreError{StoreErrorKind::kNotWritable,
                     file.native() + ": is corrupt and cannot be moved: " + error.message()});
    }
  }
  return target;
}

}  // namespace

class Store::Implementation {
 public:
  static std::expected<std::unique_ptr<Implementation>, StoreError> open(
      const fs::path& file, const StoreOptions& options) {
    auto lock = lock_directory(file.parent_path());
    if (!lock) return std::unexpected(lock.error());
    std::optional<fs::path> moved_aside;
    auto loaded = load(file);
    if (!loaded && loaded.error().kind == StoreErrorKind::kCorrupt) {
      auto moved = move_aside(file);
      if (!moved) return std::unexpected(moved.error());
      moved_aside = *std::move(moved);
      loaded = load(file);
    }
    if (!loaded) return std::unexpected(loaded.error());
    auto writer = LearnedWriter::start(file, options);
    if (!writer) return std::unexpected(writer.error());
    return std::make_unique<Implementation>(*std::move(lock), *std::move(loaded),
                                            *std::move(writer), std::move(moved_aside));
  }

  Implementation(UniqueFd lock, Loaded loaded, std::unique_ptr<LearnedWriter> writer,
                 std::optional<fs::path> moved_aside)
      : lock_(std::move(lock)),
        database_(std::move(loaded.database)),
        allocations_(std::move(loaded.allocations)),
        moved_aside_(std::move(moved_aside)),
        writer_(std::move(writer)) {}

  [[nodiscard]] const policy::Allocations& allocations() const { return allocations_; }
  [[nodiscard]] const std::optional<fs::path>& moved_aside() const { return moved_aside_; }
  [[nodiscard]] LearnedWriter& writer() { return *writer_; }

  Result save(const policy::Allocations& allocations) {
    if (allocations == allocations_) return {};
    auto saved = database_.transaction([&]() -> Result {
      // What goes first makes room: a number may have a new owner.
      if (auto removed = write_difference(allocations_, allocations, kDelete); !removed)
        return removed;
      return write_difference(allocations, allocations_, kInsert);
    });
    if (saved) allocations_ = allocations;
    return saved;
  }

  std::expected<std::vector<LearnedAddress>, StoreError> load_learned(
      std::chrono::system_clock::time_point now) {
    auto statement = database_.prepare(
        "SELECT workload, name, address, expires FROM learned WHERE expires > ?1");
    if (!statement) return std::unexpected(statement.error());
    statement->bind(
        1, std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count());
    std::vector<LearnedAddress> result;
    auto row = statement->step();
    for (; row && *row; row = statement->step()) {
      policy::IpAddress::Bytes bytes{};
      std::ranges::copy(statement->bytes(2).first(bytes.size()), bytes.begin());
      result.push_back({.workload = std::string(statement->text(0)),
                        .name = std::string(statement->text(1)),
                        .address = policy::IpAddress(bytes),
                        .expires = std::chrono::system_clock::time_point(
                            std::chrono::milliseconds(statement->integer(3)))});
    }
    if (!row) return std::unexpected(row.error());
    writer_->purge(now);
    return result;
  }

 private:
  struct Difference {
    std::string_view workload;
    std::string_view port_set;
  };
  static constexpr Difference kDelete = {
      "DELETE FROM workloads WHERE name = ?1 AND id = ?2",
      "DELETE FROM port_sets WHERE workload = ?1 AND port_set = ?2 AND bit = ?3"};
  static constexpr Difference kInsert = {
      "INSERT INTO workloads (name, id) VALUES (?1, ?2)",
      "INSERT INTO port_sets (workload, port_set, bit) VALUES (?1, ?2, ?3)"};

  // Runs the statements for what is in `left` and not in `right`.
  Result write_difference(const policy::Allocations& left, const policy::Allocations& right,
                          const Difference& sql) {
    auto workload_statement = database_.prepare(sql.workload);
    if (!workload_statement) return std::unexpected(workload_statement.error());
    auto port_set_statement = database_.prepare(sql.port_set);
    if (!port_set_statement) return std::unexpected(port_set_statement.error());

    for (const auto& [name, workload] : left.workloads()) {
      const auto found = right.workloads().find(name);
      const policy::Allocations::Workload* other =
          found == right.workloads().end() ? nullptr : &found->second;
      if (other == nullptr || other->id != workload.id) {
        workload_statement->bind(1, name);
        workload_statement->bind(2, std::int64_t{workload.id});
        if (auto done = workload_statement->run(); !done) return done;
      }
      for (const auto& [port_set, bit] : workload.port_sets) {
        if (other != nullptr) {
          const auto same = other->port_sets.find(port_set);
          if (same != other->port_sets.end() && same->second == bit) continue;
        }
        port_set_statement->bind(1, name);
        port_set_statement->bind(2, port_set);
        port_set_statement->bind(3, std::int64_t{bit});
        if (auto done = port_set_statement->run(); !done) return done;
      }
    }
    return {};
  }

  const UniqueFd lock_;  // let go after the writer has ended
  Database database_;
  policy::Allocations allocations_;
  std::optional<fs::path> moved_aside_;
  std::unique_ptr<LearnedWriter> writer_;
};

std::expected<std::unique_ptr<Store>, StoreError> Store::open(const fs::path& directory,
                                                              const StoreOptions& options) {
  auto implementation = Implementation::open(directory / "state.db", options);
  if (!implementation) return std::unexpected(implementation.error());
  return std::unique_ptr<Store>(new Store(*std::move(implementation)));
}

Store::Store(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
Store::~Store() = default;

const std::optional<fs::path>& Store::moved_aside() const {
  return implementation_->moved_aside();
}

const policy::Allocations& Store::allocations() const {
  return implementation_->allocations();
}

std::expected<void, StoreError> Store::save_allocations(const policy::Allocations& allocations) {
  return implementation_->save(allocations);
}

std::expected<std::vector<LearnedAddress>, StoreError> Store::load_learned(
    std::chrono::system_clock::time_point now) {
  return implementation_->load_learned(now);
}

void Store::learn(LearnedAddress address) {
  implementation_->writer().learn(std::move(address));
}
void Store::forget(LearnedAddress address) {
  implementation_->writer().forget(std::move(address));
}
void Store::purge_expired(std::chrono::system_clock::time_point now) {
  implementation_->writer().purge(now);
}
std::expected<void, StoreError> Store::flush() {
  return implementation_->writer().flush();
}
StoreHealth Store::health() const {
  return implementation_->writer().health();
}

}  // namespace mapgate::state
