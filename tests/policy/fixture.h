// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "agent/policy/spec.h"

namespace mapgate::policy {

using Parsed = std::expected<Spec, std::vector<SpecError>>;

// A line each; none if it was accepted.
inline std::vector<std::string> faults(const Parsed& parsed) {
  std::vector<std::string> texts;
  if (parsed) return texts;
  for (const SpecError& error : parsed.error()) texts.push_back(error.to_string());
  return texts;
}

}  // namespace mapgate::policy
