// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/name.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace mapgate::policy {
namespace {

TEST(NormalizeName, IgnoresCaseAndATrailingDot) {
  EXPECT_EQ(normalize_name("API.Example.COM."), "api.example.com");
  EXPECT_EQ(normalize_name("_dmarc.example.com"), "_dmarc.example.com");
  EXPECT_EQ(normalize_name("localhost"), "localhost");
}

TEST(NormalizeName, TheRootIsTheEmptyName) {
  EXPECT_EQ(normalize_name("."), "");
}

TEST(NormalizeName, HoldsLabelsAndNamesToTheirLengths) {
  const std::string label63(63, 'a');
  EXPECT_TRUE(normalize_name(label63));
  EXPECT_FALSE(normalize_name(label63 + 'a'));
  const std::string name253 = label63 + '.' + label63 + '.' + label63 + '.' + std::string(61, 'a');
  EXPECT_EQ(name253.size(), 253U);
  EXPECT_TRUE(normalize_name(name253));
  EXPECT_TRUE(normalize_name(name253 + '.'));
  EXPECT_FALSE(normalize_name(name253 + 'a'));
}

TEST(NormalizeName, RefusesWhatIsNoName) {
  using namespace std::string_view_literals;
  for (std::string_view text : std::initializer_list<std::string_view>{
           "", "..", ".example.com", "a..b", "a b.com", "a\tb", "a\0b"sv, "\xc3\xa4.de"}) {
    EXPECT_FALSE(normalize_name(text)) << text;
  }
}

TEST(NormalizeName, RefusesEscapesSoThatADotInALabelIsNoBoundary) {
  EXPECT_FALSE(normalize_name("evil\\.example.com"));
  EXPECT_FALSE(normalize_name("evil\\046example.com"));
}

}  // namespace
}  // namespace mapgate::policy
