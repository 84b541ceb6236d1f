// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mapgate::control {

using QueryParameters = std::map<std::string, std::string, std::less<>>;

// Where a request goes: the path and the query of its target, percent-decoded.
struct HttpTarget {
  std::string path;
  QueryParameters query;

  // Origin form only (RFC 9112, 3.2.1): "/v1/entries?map=mg_ports&workload=web". None: malformed,
  // or a parameter is given twice.
  [[nodiscard]] static std::optional<HttpTarget> parse(std::string_view target);
};

struct HttpRequest {
  std::string method;
  HttpTarget target;
  std::string body;
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// The bytes of `text` for use in a query: everything but unreserved characters (RFC 3986)
// percent-encoded.
[[nodiscard]] std::string percent_encode(std::string_view text);

}  // namespace mapgate::control
