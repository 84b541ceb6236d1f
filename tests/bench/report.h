// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

namespace mapgate::bench {

// One figure. The aim and the ratio are what an issue asks for; `peer` is what the ratio compares
// with.
struct Figure {
  std::string_view suite;
  std::string_view name;
  double value = 0;
  std::string_view unit;
  std::string_view aim = {};
  std::string_view peer = {};
  std::optional<double> ratio = {};
};

// One JSON object on a line of stdout. Texts are ours and need no escaping.
inline void report(const Figure& figure) {
  std::printf("{\"suite\": \"%.*s\", \"case\": \"%.*s\", \"value\": %.6g, \"unit\": \"%.*s\"",
              static_cast<int>(figure.suite.size()), figure.suite.data(),
              static_cast<int>(figure.name.size()), figure.name.data(), figure.value,
              static_cast<int>(figure.unit.size()), figure.unit.data());
  const auto text = [](const char* name, std::string_view value) {
    if (!value.empty())
      std::printf(", \"%s\": \"%.*s\"", name, static_cast<int>(value.size()), value.data());
  };
  text("aim", figure.aim);
  text("peer", figure.peer);
  if (figure.ratio) std::printf(", \"ratio\": %.4g", *figure.ratio);
  std::printf("}\n");
  std::fflush(stdout);
}

// The value below which `part` (0 to 1) of the samples are; of at least one.
inline double quantile(std::vector<double> samples, double part) {
  const auto rank = static_cast<std::size_t>(part * static_cast<double>(samples.size() - 1) + 0.5);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(rank),
                   samples.end());
  return samples[rank];
}
inline double median(const std::vector<double>& samples) {
  return quantile(samples, 0.5);
}

}  // namespace mapgate::bench
