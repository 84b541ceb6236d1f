// SPDX-License-Identifier: Apache-2.0
#include "agent/control/http.h"

#include <array>
#include <charconv>

namespace mapgate::control {
namespace {

std::optional<std::string> percent_decode(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    if (text.front() != '%') {
      result.push_back(text.front());
      text.remove_prefix(1);
      continue;
    }
    if (text.size() < 3) return std::nullopt;
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + 3, value, 16);
    if (error != std::errc() || end != text.data() + 3 || value == 0) return std::nullopt;
    result.push_back(static_cast<char>(value));
    text.remove_prefix(3);
  }
  return result;
}

std::optional<QueryParameters> parse_query(std::string_view query) {
  QueryParameters parameters;
  while (!query.empty()) {
    const std::string_view parameter = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), parameter.size() + 1));
    if (parameter.empty()) continue;
    const std::size_t equals = parameter.find('=');
    auto name = percent_decode(parameter.substr(0, equals));
    auto value =
        percent_decode(equals == std::string_view::npos ? "" : parameter.substr(equals + 1));
    if (!name || !value || !parameters.try_emplace(std::move(*name), std::move(*value)).second)
      return std::nullopt;
  }
  return parameters;
}

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

std::optional<HttpTarget> HttpTarget::parse(std::string_view target) {
  if (!target.starts_with('/')) return std::nullopt;
  const std::size_t question_mark = target.find('?');
  auto path = percent_decode(target.substr(0, question_mark));
  auto query =
      parse_query(question_mark == std::string_view::npos ? "" : target.substr(question_mark + 1));
  if (!path || !query) return std::nullopt;
  return HttpTarget{std::move(*path), std::move(*query)};
}

std::string percent_encode(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    if (is_unreserved(c)) {
      result.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    result.push_back('%');
    result.push_back(kDigits[byte >> 4]);
    result.push_back(kDigits[byte & 15]);
  }
  return result;
}

}  // namespace mapgate::control
