// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string_view>

#include "agent/policy/document.h"

namespace mapgate::policy {

// parse_json() for a million small documents of the same shape, one after the other: it uses the
// memory of the document before. Both read the same from every text.
class JsonLineParser {
 public:
  // `line` is one document; places are in line 1. The result lives until the next call.
  [[nodiscard]] std::expected<const DocumentNode*, DocumentError> parse(std::string_view line);

 private:
  DocumentNode document_;
};

}  // namespace mapgate::policy
