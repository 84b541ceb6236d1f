// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <string>

#include "agent/control/http.h"

namespace mapgate::control {

// One request over a Unix socket, blocking. The error, one line, means that no response came:
// nobody listens, the socket may not be used, the connection ended, or `timeout` passed.
[[nodiscard]] std::expected<HttpResponse, std::string> http_request(
    const std::filesystem::path& socket, const std::string& method, const std::string& target,
    std::chrono::milliseconds timeout);

}  // namespace mapgate::control
