// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/json_line.h"

#include <gtest/gtest.h>

namespace mapgate::policy {
namespace {

// Documents of different shapes, so that each is read over the remains of another.
TEST(JsonLine, ReadsTheSameAsTheParserOfWholeDocuments) {
  JsonLineParser parser;
  for (const char* line :
       {R"({"key": {"prefixlen": 24, "addr": "192.0.2.0"}, "value": {"action": 1}})",
        R"({"key":[1,2,{"a":[]}],"value":-5})",
        R"({"key": {}, "value": []})",
        "  7  ",
        "-0",
        "0",
        "01",
        "1.5",
        "1e3",
        "123456789012345678",
        "1234567890123456789",
        "12345678901234567890",
        "true",
        "false",
        "trueish",
        "null",
        "nul",
        R"("text")",
        R"("a\u00e9\n")",
        "\"\xc3\xa9\"",
        "\"\xff\"",
        "\"\x01\"",
        R"("open)",
        "{",
        "[1,]",
        R"({"a":1,})",
        R"({"a" 1})",
        "{} {}",
        "",
        R"({"a": 1, "a": 2})",
        "[[[[[[[[[[1]]]]]]]]]]",
        "\t[ 1 ,\r 2 ]",
        "[1 2]",
        R"({"key": {"prefixlen": 24, "addr": "192.0.2.0"}, "value": {"action": true}})"}) {
    const auto wanted = parse_json(line);
    const auto read = parser.parse(line);
    ASSERT_EQ(read.has_value(), wanted.has_value()) << line;
    if (wanted) {
      EXPECT_EQ(**read, *wanted) << line;
    } else {
      EXPECT_EQ(read.error().reason, wanted.error().reason) << line;
    }
  }
}

}  // namespace
}  // namespace mapgate::policy
