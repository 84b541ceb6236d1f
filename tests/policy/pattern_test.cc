// SPDX-License-Identifier: Apache-2.0
#include "agent/policy/pattern.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

namespace mapgate::policy {
namespace {

struct Case {
  std::string_view pattern;
  std::string_view name;
  bool matches;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.pattern << " and " << c.name;
  }
};

class PatternMatches : public testing::TestWithParam<Case> {};

TEST_P(PatternMatches, AsTheReferenceSays) {
  const auto pattern = NamePattern::parse(GetParam().pattern);
  ASSERT_TRUE(pattern) << pattern.error();
  EXPECT_EQ(pattern->matches(GetParam().name), GetParam().matches);
}

INSTANTIATE_TEST_SUITE_P(
    Table, PatternMatches,
    testing::Values(
        // '*' stays inside one label.
        Case{"*.example.com", "a.example.com", true}, Case{"*.example.com", "example.com", false},
        Case{"*.example.com", "a.b.example.com", false},
        Case{"*.example.com", "a.example.com.evil.org", false},
        // It may match nothing within a label.
        Case{"part*ial.com", "partial.com", true}, Case{"part*ial.com", "partxyial.com", true},
        Case{"part*ial.com", "part.ial.com", false}, Case{"*example.com", "example.com", true},
        Case{"*example.com", "myexample.com", true}, Case{"*example.com", "a.example.com", false},
        Case{"api*.example.com", "api.example.com", true},
        Case{"api*.example.com", "api-7.example.com", true},
        Case{"api*.example.com", "xapi.example.com", false},
        // A suffix of characters is not a suffix of labels.
        Case{"google.com", "evilgoogle.com", false}, Case{"*.google.com", "evilgoogle.com", false},
        Case{"**.google.com", "evilgoogle.com", false},
        Case{"google.com", "google.com.evil.org", false}, Case{"google.com", "google.com", true},
        Case{"google.com", "www.google.com", false},
        // Several in one name, also in one label.
        Case{"*.*.example.com", "a.b.example.com", true},
        Case{"*.*.example.com", "a.example.com", false}, Case{"a*b*c.com", "abc.com", true},
        Case{"a*b*c.com", "a1b2b3c.com", true}, Case{"a*b*c.com", "a1c2b.com", false},
        Case{"*a*.com", "bab.com", true}, Case{"*a*.com", "bbb.com", false},
        Case{"www.*.com", "www.example.com", true}, Case{"www.*.com", "www.a.b.com", false},
        Case{"*.com", "example.com", true}, Case{"example.*", "example.com", true},
        Case{"example.*", "example.co.uk", false}, Case{"a*.b", "a.b", true},
        Case{"*b.c", "aab.c", true}, Case{"*ab.c", "aab.c", true}, Case{"*ab.c", "aaba.c", false},
        // A leading "**." is one or more labels.
        Case{"**.example.com", "a.example.com", true},
        Case{"**.example.com", "a.b.c.example.com", true},
        Case{"**.example.com", "example.com", false},
        Case{"**.api*.example.com", "x.y.api7.example.com", true},
        Case{"**.api*.example.com", "api7.example.com", false},
        Case{"**.api*.example.com", "x.api7.z.example.com", false},
        Case{"**.com", "example.com", true}, Case{"**.com", "com", false},
        Case{"**.*.com", "a.b.com", true}, Case{"**.*.com", "b.com", false},
        // '*' alone is every name, the root included; with a dot it is a label.
        Case{"*", "example.com", true}, Case{"*", "a.b.c.d", true}, Case{"*", "com", true},
        Case{"*", "", true}, Case{"*.", "com", true}, Case{"*.", "example.com", false},
        Case{"**.com", "", false}, Case{"*.com", "", false},
        // Case and a trailing dot of the pattern do not matter.
        Case{"*.EXAMPLE.com.", "a.example.com", true},
        Case{"_sip.*.example.com", "_sip.a.example.com", true}));

TEST(NamePattern, RefusesOtherCharacters) {
  for (std::string_view text :
       {"a b.com", "a?.com", "[ab].com", "a/b.com", "a\\.com", "\xc3\xa4.de", "a,b"}) {
    EXPECT_FALSE(NamePattern::parse(text)) << text;
  }
}

TEST(NamePattern, RefusesDoubleStarsElsewhere) {
  for (std::string_view text :
       {"**", "a.**.com", "**a.com", "a**.com", "***.com", "**.**.com", "example.**"}) {
    const auto pattern = NamePattern::parse(text);
    ASSERT_FALSE(pattern) << text;
    EXPECT_NE(pattern.error().find("**"), std::string::npos);
  }
}

TEST(NamePattern, RefusesWhatIsNoName) {
  for (const std::string& text :
       {std::string(), std::string("."), std::string("**."), std::string("a..b"), std::string(".a"),
        std::string(64, 'a') + ".com"}) {
    EXPECT_FALSE(NamePattern::parse(text)) << text;
  }
}

TEST(NamePattern, LiteralSuffixIsTheLabelsBehindTheLastStar) {
  EXPECT_EQ(NamePattern::parse("*.example.com")->literal_suffix(), "example.com");
  EXPECT_EQ(NamePattern::parse("a*.example.com")->literal_suffix(), "example.com");
  EXPECT_EQ(NamePattern::parse("**.example.com")->literal_suffix(), "example.com");
  EXPECT_EQ(NamePattern::parse("a.example.com")->literal_suffix(), "a.example.com");
  EXPECT_EQ(NamePattern::parse("a.*")->literal_suffix(), "");
  EXPECT_EQ(NamePattern::parse("*")->literal_suffix(), "");
}

}  // namespace
}  // namespace mapgate::policy
