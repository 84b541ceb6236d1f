// SPDX-License-Identifier: Apache-2.0
// The control tool's command line, see docs/cli.md.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/control/http_client.h"

namespace {

using Json = nlohmann::ordered_json;
using mapgate::control::HttpResponse;
using mapgate::control::percent_encode;

enum ExitCode { kDone = 0, kError = 1, kUnreachable = 2, kNotRealised = 3, kRefused = 4 };

// What ends the program early: an exit code, and a line for people.
struct Failure {
  ExitCode code;
  std::string text;
};

// More than a daemon with a full loop needs.
constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

struct CommandLine {
  std::string socket = "/run/mapgate/control.sock";
  std::string output = "table";
  std::string map;
  std::string workload;
  std::string state;
  std::uint64_t revision = 0;
  std::string epoch;
  double timeout = 30;
};

ExitCode exit_code_of(unsigned status) {
  if (status == 200) return kDone;
  if (status == 202) return kNotRealised;
  return status >= 400 && status < 500 ? kRefused : kError;
}

// The text of a problem, and of every fault that it lists.
std::string describe_problem(const HttpResponse& response) {
  const Json body = Json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("detail"))
    return fmt::format("HTTP status {}", response.status);
  if (!body.contains("errors") || body["errors"].empty()) return body["detail"].get<std::string>();
  std::string text;
  for (const Json& fault : body["errors"]) {
    text += fmt::format("{}{}:{}:{}: {}: {}", text.empty() ? "" : "\n",
                        fault["file"].get<std::string>(), fault["line"].get<unsigned>(),
                        fault["column"].get<unsigned>(), fault["pointer"].get<std::string>(),
                        fault["reason"].get<std::string>());
  }
  return text;
}

struct Reply {
  ExitCode code = kDone;
  Json body;
};

Reply request(const CommandLine& line, const std::string& method, const std::string& target,
              std::chrono::milliseconds timeout) {
  const auto response = mapgate::control::http_request(line.socket, method, target, timeout);
  if (!response) throw Failure{kUnreachable, fmt::format("{}: {}", line.socket, response.error())};
  const ExitCode code = exit_code_of(response->status);
  if (code != kDone && code != kNotRealised) throw Failure{code, describe_problem(*response)};
  Json body = Json::parse(response->body, nullptr, false);
  if (!body.is_object()) throw Failure{kError, "the daemon's answer is no JSON object"};
  return {code, std::move(body)};
}

std::string parameter(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "&" + name + "=" + percent_encode(value);
}

// A list that was cut short, on a full disk say, must not look like the whole.
void check_output() {
  if (!std::cout.flush()) throw Failure{kError, "cannot write the output"};
}

// Page by page: a list may be longer than fits into memory.
void for_each_page(const CommandLine& line, const std::string& path, const std::string& query,
                   const std::function<void(Json)>& visit) {
  std::string from;
  for (;;) {
    Json page = request(line, "GET", path + "?limit=10000" + query + from, kPatience).body;
    const Json next = std::exchange(page["next"], {});
    page.erase("next");
    visit(std::move(page));
    check_output();
    if (next.is_null()) return;
    from = parameter("from", next.is_string() ? next.get<std::string>() : next.dump());
  }
}

// --- tables
// ------------------------------------------------------------------------------------------------------

// What came over the socket may hold what a terminal would obey.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return printable(value.get<std::string>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& part : value) text += (text.empty() ? "" : " ") + cell(part);
  return text.empty() ? "-" : text;
}

using Row = std::vector<std::string>;

struct Table {
  Row header;
  std::vector<Row> rows;
};

// Prints a table, or several parts of one. Columns are as wide as what was there so far.
class TablePrinter {
 public:
  void print(Table part) {
    if (!header_printed_) header_ = std::move(part.header);
    if (part.rows.empty()) return;
    widths_.resize(header_.size());
    widen(header_);
    for (const Row& row : part.rows) widen(row);
    print_header();
    for (const Row& row : part.rows) print_row(row);
  }
  // Behind the last part: a table without rows has a header.
  void finish() {
    widths_.resize(header_.size());
    widen(header_);
    print_header();
  }

 private:
  void widen(const Row& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
  }
  void print_header() {
    if (!std::exchange(header_printed_, true)) print_row(header_);
  }
  void print_row(const Row& row) const {
    std::string text;
    for (std::size_t i = 0; i < row.size(); ++i)
      text += i + 1 == row.size() ? row[i] : fmt::format("{:{}}  ", row[i], widths_[i]);
    std::cout << text << "\n";
  }

  Row header_;
  bool header_printed_ = false;
  std::vector<std::size_t> widths_;
};

void print_table(Row header, std::vector<Row> rows) {
  TablePrinter printer;
  printer.print({std::move(header), std::move(rows)});
  printer.finish();
}

// A declared map's, in one line.
std::string state_of(const Json& map) {
  std::string text = cell(map["state"]);
  if (!map.contains("rows")) return text;
  const Json& rows = map["rows"];
  const Json& resync = map["resync"];
  if (rows["pending"] != 0) text += ", " + cell(rows["pending"]) + " pending";
  if (rows["error"] != 0) text += ", " + cell(rows["error"]) + " failed";
  if (map["nearly_full"].get<bool>()) text += ", nearly full";
  if (resync["repaired"] != 0) text += ", " + cell(resync["repaired"]) + " repaired";
  if (resync["foreign"] != 0) text += ", " + cell(resync["foreign"]) + " foreign entries left";
  return text;
}

void print_declared(const Json& maps) {
  if (maps.empty()) return;
  std::cout << "\n";
  std::vector<Row> rows;
  std::vector<Row> errors;
  for (const Json& map : maps) {
    const bool open = map.contains("entries");
    rows.push_back({cell(map["name"]), open ? cell(map["type"]) : "-",
                    open ? cell(map["entries"]) : "-", open ? cell(map["max_entries"]) : "-",
                    open ? fmt::format("{:.1f}%", map["fill"].get<double>() * 100) : "-",
                    state_of(map), cell(map["pin"])});
    if (!map["error"].is_null()) errors.push_back({cell(map["name"]), "-", cell(map["error"])});
    if (!open) continue;
    for (const Json& error : map["errors"])
      errors.push_back({cell(map["name"]), printable(error["key"].dump()), cell(error["error"])});
  }
  print_table({"DECLARED MAP", "TYPE", "ENTRIES", "MAX", "FILL", "STATE", "PIN"}, rows);
  if (errors.empty()) return;
  std::cout << "\n";
  print_table({"DECLARED MAP", "KEY", "ERROR"}, errors);
}

void print_status(const Json& status) {
  const auto line = [](const std::string& name, const std::string& text) {
    std::cout << fmt::format("{:<20} {}\n", name, text);
  };
  const Json& rows = status["rows"];
  const Json& spec = status["spec"];
  line("epoch", cell(status["epoch"]));
  line("revision", cell(status["revision"]));
  line("lowest unreconciled", cell(status["lowest_unreconciled"]));
  std::string counts = fmt::format("{} pending, {} done, {} failed", cell(rows["pending"]),
                                   cell(rows["done"]), cell(rows["error"]));
  if (rows["parked"] != 0)
    counts += fmt::format(", {} of them wait for room: map full", cell(rows["parked"]));
  line("rows", counts);
  line("gates", fmt::format("{} open, {} answers held", cell(status["gates"]["open"]),
                            cell(status["gates"]["held_answers"])));
  const Json& times = status["answer_times"];
  if (times["upstream"]["count"] != 0) {
    const auto median = [&](const char* part) {
      return fmt::format("{:.0f}", times[part]["p50_us"].get<double>());
    };
    line("answers",
         fmt::format("{}, half of them within {} us upstream, {} table, {} kernel, {} release",
                     cell(times["upstream"]["count"]), median("upstream"), median("table"),
                     median("kernel"), median("release")));
  }
  line("spec", fmt::format("{}: {} (revision {})", cell(spec["file"]), cell(spec["state"]),
                           cell(spec["revision"])));
  if (!spec["error"].is_null()) line("", cell(spec["error"]));
  const Json& reconciler = status["reconciler"];
  line("reconciler",
       fmt::format("{} writes, {} deletes, {} failures; {} adopted, {} repaired, {} removed",
                   cell(reconciler["writes"]), cell(reconciler["deletes"]),
                   cell(reconciler["failures"]), cell(reconciler["adopted"]),
                   cell(reconciler["repaired"]), cell(reconciler["removed"])));
  const Json& datapath = status["datapath"];
  if (datapath["repaired"] != 0)
    line("datapath",
         fmt::format("{} times others changed it and it was put right; the last time: {}",
                     cell(datapath["repaired"]), cell(datapath["last_repair"])));
  for (const Json& problem : datapath["problems"]) line("datapath", cell(problem));
  if (!status["degraded"].is_null()) line("degraded", cell(status["degraded"]));
  std::cout << "\n";
  std::vector<Row> maps;
  for (const Json& map : status["maps"]) {
    maps.push_back({cell(map["name"]), cell(map["entries"]), cell(map["max_entries"]),
                    fmt::format("{:.1f}%{}", map["fill"].get<double>() * 100,
                                map["nearly_full"].get<bool>() ? " nearly full" : "")});
  }
  print_table({"MAP", "ENTRIES", "MAX", "FILL"}, maps);
  std::cout << "\n";
  std::vector<Row> workloads;
  for (const Json& workload : status["workloads"]) {
    const Json& denied = workload["denied"];
    const std::uint64_t denials =
        denied["connects"].get<std::uint64_t>() + denied["sends"].get<std::uint64_t>() +
        denied["packets"].get<std::uint64_t>() + denied["queries"].get<std::uint64_t>();
    workloads.push_back({cell(workload["name"]), cell(workload["mode"]), cell(workload["state"]),
                         cell(workload["cgroup"]), std::to_string(denials),
                         cell(workload["error"])});
  }
  print_table({"WORKLOAD", "MODE", "STATE", "CGROUP", "DENIED", "ERROR"}, workloads);
  print_declared(status["declared_maps"]);
  if (status["errors"].empty()) return;
  std::cout << "\n";
  std::vector<Row> errors;
  for (const Json& error : status["errors"]) {
    errors.push_back(
        {cell(error["map"]), cell(error["workload"]), cell(error["key"]), cell(error["error"])});
  }
  print_table({"MAP", "WORKLOAD", "KEY", "ERROR"}, errors);
}

std::string row_key(const Json& row) {
  for (const char* field : {"address", "prefix"}) {
    if (row.contains(field)) return cell(row[field]);
  }
  if (row.contains("protocol")) {
    return row["port"] == "all" ? cell(row["protocol"])
                                : cell(row["protocol"]) + ":" + cell(row["port"]);
  }
  return "settings";
}

// Also of per-CPU maps whose CPUs do not agree: no spec could have such a value.
std::string declared_value(const Json& entry) {
  if (!entry.contains("cpu_values")) return entry["value"].dump();
  std::string text = "differs:";
  std::size_t cpu = 0;
  for (const Json& value : entry["cpu_values"])
    text += " cpu" + std::to_string(cpu++) + "=" + value.dump();
  return text;
}

// Of a declared map, in one line each, as the spec could have them.
Table declared_entries_table(const Json& body) {
  std::vector<Row> rows;
  for (const Json& entry : body["entries"]) {
    Row row = {printable(entry["key"].dump()), printable(declared_value(entry))};
    if (entry.contains("state")) {
      row.push_back(cell(entry["state"]) + (entry["erased"].get<bool>() ? " (delete)" : ""));
      row.push_back(cell(entry["error"]));
    }
    rows.push_back(std::move(row));
  }
  Row header = {"KEY", "VALUE"};
  if (!rows.empty() && rows.front().size() > header.size())
    header = {"KEY", "VALUE", "STATE", "ERROR"};
  return {std::move(header), std::move(rows)};
}

Table entries_table(const Json& body) {
  if (body.contains("pin")) return declared_entries_table(body);
  std::vector<Row> rows;
  for (const Json& row : body["entries"]) {
    std::string value = row.contains("ports")  ? cell(row["ports"])
                        : row.contains("mode") ? cell(row["mode"])
                                               : "-";
    std::string state = cell(row["state"]) + (row["erased"].get<bool>() ? " (delete)" : "");
    rows.push_back({cell(row["map"]), cell(row["workload"]), row_key(row), std::move(value),
                    cell(row["revision"]), std::move(state),
                    row["error"].is_null() ? "" : cell(row["error"]["text"])});
  }
  return {{"MAP", "WORKLOAD", "KEY", "VALUE", "REVISION", "STATE", "ERROR"}, std::move(rows)};
}

Table names_table(const Json& body) {
  std::vector<Row> rows;
  for (const Json& entry : body["names"]) {
    rows.push_back(
        {cell(entry["workload"]),
         entry["name"].get_ref<const std::string&>().empty() ? "(unknown)" : cell(entry["name"]),
         cell(entry["address"]), cell(entry["ports"]), cell(entry["expires_seconds"]) + " s"});
  }
  return {{"WORKLOAD", "NAME", "ADDRESS", "PORTS", "EXPIRES IN"}, std::move(rows)};
}

// A line for each row that an answer waits for.
Table gates_table(const Json& body) {
  std::vector<Row> rows;
  for (const Json& gate : body["gates"]) {
    const Row held = {cell(gate["workload"]), cell(gate["name"]), cell(gate["held_ms"]) + " ms",
                      cell(gate["deadline_ms"]) + " ms"};
    for (const Json& row : gate["rows"]) {
      rows.push_back(held);
      rows.back().insert(rows.back().end(),
                         {cell(row["map"]), cell(row["key"]), cell(row["state"]),
                          row["error"].is_null() ? "" : cell(row["error"]["text"])});
    }
  }
  return {{"WORKLOAD", "NAME", "HELD FOR", "TIME LEFT", "MAP", "KEY", "STATE", "ERROR"},
          std::move(rows)};
}

void print_answers(const Json& body) {
  std::vector<Row> rows;
  for (const Json& answer : body["answers"]) {
    const auto since = [&](const char* field) -> std::string {
      if (answer[field].is_null() || answer["query_arrived_ns"].is_null()) return "-";
      const auto ns =
          answer[field].get<std::int64_t>() - answer["query_arrived_ns"].get<std::int64_t>();
      return fmt::format("{:.0f}", static_cast<double>(ns) / 1000);
    };
    rows.push_back({cell(answer["workload"]), cell(answer["name"]), cell(answer["type"]),
                    cell(answer["outcome"]), cell(answer["revision"]),
                    since("upstream_answered_ns"), since("committed_ns"), since("realised_ns"),
                    since("sent_ns"), cell(answer["addresses"])});
  }
  print_table({"WORKLOAD", "NAME", "TYPE", "OUTCOME", "REVISION", "UPSTREAM us", "COMMIT us",
               "REALISED us", "SENT us", "ADDRESSES"},
              rows);
}

// --- commands
// ----------------------------------------------------------------------------------------------------

ExitCode print(const CommandLine& line, const Json& body, void (*table)(const Json&)) {
  if (line.output == "json") {
    std::cout << body.dump(2) << "\n";
  } else {
    table(body);
  }
  return kDone;
}

// One entry per line.
class JsonListPrinter {
 public:
  explicit JsonListPrinter(std::string list) : list_(std::move(list)) {}

  void print(Json page) {
    const Json entries = std::exchange(page[list_], {});
    page.erase(list_);
    if (separator_.empty()) print_head(page);
    for (const Json& entry : entries) {
      std::cout << separator_ << "    " << entry.dump();
      separator_ = ",\n";
    }
  }
  void finish() const { std::cout << (separator_ == "\n" ? "" : "\n  ") << "]\n}\n"; }

 private:
  // Everything but the closing brace.
  void print_head(const Json& head) {
    std::string text = head.dump(2);
    text.resize(text.rfind('}'));
    while (text.ends_with('\n')) text.pop_back();
    std::cout << text << (head.empty() ? "\n" : ",\n") << "  \"" << list_ << "\": [";
    separator_ = "\n";
  }

  const std::string list_;
  std::string separator_;
};

ExitCode print_list(const CommandLine& line, const std::string& path, const std::string& query,
                    const std::string& list, Table (*table)(const Json&)) {
  if (line.output == "json") {
    JsonListPrinter printer(list);
    for_each_page(line, path, query, [&](Json page) { printer.print(std::move(page)); });
    printer.finish();
    return kDone;
  }
  TablePrinter printer;
  for_each_page(line, path, query, [&](const Json& page) { printer.print(table(page)); });
  printer.finish();
  return kDone;
}

std::chrono::milliseconds patience(const CommandLine& line) {
  return kPatience + std::chrono::milliseconds(static_cast<std::int64_t>(line.timeout * 1000));
}

ExitCode wait(const CommandLine& line) {
  const Reply reply = request(line, "GET",
                              fmt::format("/v1/wait?revision={}&timeout={}{}", line.revision,
                                          line.timeout, parameter("epoch", line.epoch)),
                              patience(line));
  print(line, reply.body, [](const Json& body) {
    std::cout << fmt::format("{}: revision {}, lowest unreconciled {}\n", cell(body["outcome"]),
                             cell(body["revision"]), cell(body["lowest_unreconciled"]));
    if (!body["error"].is_null()) std::cout << cell(body["error"]) << "\n";
  });
  if (reply.code != kDone) return reply.code;
  return reply.body["outcome"] == "opened" ? kDone : kError;
}

ExitCode reload(const CommandLine& line) {
  const Reply reply =
      request(line, "POST", fmt::format("/v1/reload?timeout={}", line.timeout), patience(line));
  print(line, reply.body, [](const Json& body) {
    std::cout << fmt::format("{} (revision {})\n", cell(body["state"]), cell(body["revision"]));
    for (const Json& problem : body["problems"]) std::cout << cell(problem) << "\n";
  });
  return reply.code;
}

using Command = ExitCode (*)(const CommandLine&);

void add_commands(CLI::App& app, CommandLine& line, Command& command) {
  const auto add = [&](const char* name, const char* description, Command run) {
    CLI::App* subcommand = app.add_subcommand(name, description);
    subcommand->callback([&command, run] { command = run; });
    return subcommand;
  };
  add("status", "The daemon as a whole", [](const CommandLine& l) {
    return print(l, request(l, "GET", "/v1/status", kPatience).body, print_status);
  });
  CLI::App* get =
      add("get", "Rows with their status, or what a declared map holds", [](const CommandLine& l) {
        const std::string query = parameter("map", l.map) + parameter("workload", l.workload) +
                                  parameter("state", l.state);
        return print_list(l, "/v1/entries", query, "entries", entries_table);
      });
  get->add_option("--map", line.map,
                  "Only rows of this map, e.g. mg_addresses; or a map that the spec declares");
  get->add_option("--workload", line.workload, "Only rows of this workload");
  get->add_option("--state", line.state, "Only rows in this state")
      ->check(CLI::IsMember({"pending", "done", "error"}));
  CLI::App* names =
      add("names", "Names, and the addresses that they hold open", [](const CommandLine& l) {
        return print_list(l, "/v1/names", parameter("workload", l.workload), "names", names_table);
      });
  names->add_option("--workload", line.workload, "Only names of this workload");
  CLI::App* gates =
      add("gates", "The DNS answers that are held, and for which rows", [](const CommandLine& l) {
        return print_list(l, "/v1/gates", parameter("workload", l.workload), "gates", gates_table);
      });
  gates->add_option("--workload", line.workload, "Only answers for this workload");
  add("answers", "The last DNS answers that were held, with their times", [](const CommandLine& l) {
    return print(l, request(l, "GET", "/v1/answers", kPatience).body, print_answers);
  });
  CLI::App* wait_command =
      add("wait", "Wait until every row is realised at a revision or later", wait);
  wait_command->add_option("revision", line.revision, "As status shows it")->required();
  wait_command->add_option("--epoch", line.epoch,
                           "The start of the daemon that the revision is of");
  CLI::App* reload_command =
      add("reload", "Read the spec again, and wait until it is in force", reload);
  for (CLI::App* waiting : {wait_command, reload_command}) {
    waiting->add_option("--timeout", line.timeout, "Seconds")
        ->check(CLI::Range(0.0, 600.0))
        ->capture_default_str();
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line;
  Command command = nullptr;
  CLI::App app{"mapgatectl shows and controls a running mapgated.", "mapgatectl"};
  app.footer(
      "Exit codes: 0 done; 1 wrong usage, or another error; 2 the daemon cannot be reached; 3 "
      "accepted, but not "
      "realised in time; 4 refused.");
  app.set_version_flag("--version", "mapgatectl " MAPGATE_VERSION);
  app.add_option("--socket", line.socket, "The daemon's control socket")->capture_default_str();
  app.add_option("-o,--output", line.output, "How to print")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.require_subcommand(1);
  app.fallthrough();  // "get -o json" is "-o json get"
  add_commands(app, line, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kError;
  }
  try {
    const ExitCode code = command(line);
    check_output();
    return code;
  } catch (const Failure& failure) {
    std::cerr << "mapgatectl: " << failure.text << "\n";
    return failure.code;
  } catch (const std::exception& error) {
    std::cerr << "mapgatectl: " << error.what() << "\n";
    return kError;
  }
}
