// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <spdlog/logger.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/datapath/datapath.h"
#include "agent/engine/enforcement.h"
#include "agent/engine/line_limit.h"

namespace mapgate::engine {

// One denial, for people: "web: denied connect to 192.0.2.1:443 (tcp) by curl[123]: no rule has the
// address".
[[nodiscard]] std::string describe_denial(const mg_denial& denial, std::string_view workload,
                                          std::string_view process);

// Logs what the datapath denies, as it happens, at most kLinesPerSecond.
class DenialLog {
 public:
  static constexpr std::uint32_t kLinesPerSecond = 20;
  using WorkloadName = std::function<std::string_view(WorkloadId)>;

  // `datapath` and `log` outlive it.
  DenialLog(boost::asio::io_context& io, datapath::Datapath& datapath, WorkloadName name,
            spdlog::logger& log);
  ~DenialLog();
  DenialLog(const DenialLog&) = delete;
  DenialLog& operator=(const DenialLog&) = delete;

  [[nodiscard]] std::uint64_t seen() const { return seen_; }

 private:
  void wait();
  void log(const mg_denial& denial);

  datapath::Datapath& datapath_;
  WorkloadName name_;
  spdlog::logger& log_;
  LineLimit limit_{kLinesPerSecond};
  std::uint64_t seen_ = 0;
  boost::asio::posix::stream_descriptor events_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace mapgate::engine
