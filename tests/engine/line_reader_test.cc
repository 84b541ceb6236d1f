// SPDX-License-Identifier: Apache-2.0
#include "agent/engine/line_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mapgate::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LineReaderTest : public testing::Test {
 protected:
  void SetUp() override { path_ = testing::TempDir() + "line_reader_" + std::to_string(getpid()); }
  void TearDown() override { std::filesystem::remove(path_); }

  // All lines, and behind them the error if there was one.
  std::vector<std::string> lines(const std::string& text, std::size_t max_line = 100,
                                 LineReader::Part part = {}) {
    std::ofstream(path_, std::ios::binary) << text;
    auto reader = LineReader::open(path_, max_line, part);
    EXPECT_TRUE(reader);
    std::vector<std::string> result;
    for (;;) {
      const auto line = reader->next();
      if (!line) {
        result.push_back("error: " + line.error());
        return result;
      }
      if (!*line) return result;
      result.emplace_back(**line);
    }
  }

  std::string path_;
};

TEST_F(LineReaderTest, GivesLinesWithoutTheirEnds) {
  EXPECT_THAT(lines("a\nb\n"), ElementsAre("a", "b"));
  EXPECT_THAT(lines("a\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(lines(""), IsEmpty());
}

TEST_F(LineReaderTest, ReadsFilesThatAreLargerThanItsBuffer) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += std::to_string(i) + "\n";
  const auto all = lines(text);
  ASSERT_EQ(all.size(), 300'000U);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], std::to_string(i));
}

TEST_F(LineReaderTest, RefusesALineThatIsTooLongWithoutReadingItAll) {
  EXPECT_THAT(lines("short\n" + std::string(5, 'x') + "\n", 5), ElementsAre("short", "xxxxx"));
  EXPECT_THAT(lines("short\n" + std::string(6, 'x') + "\n", 5),
              ElementsAre("short", "error: the line has more than 5 bytes"));
  EXPECT_THAT(lines(std::string(4'000'000, 'x'), 5),
              ElementsAre("error: the line has more than 5 bytes"));
}

TEST_F(LineReaderTest, PartsHaveEachLineOnceWhereverTheyAreCut) {
  const std::string text = "a\n\nbcd\ne\n\nf";
  const std::vector<std::string> whole = lines(text);
  for (std::uint64_t cut = 0; cut <= text.size() + 1; ++cut) {
    std::vector<std::string> both = lines(text, 100, {.begin = 0, .end = cut});
    for (std::string& line : lines(text, 100, {.begin = cut})) both.push_back(std::move(line));
    // A part that begins at 0 is the whole file.
    if (cut > 0) {
      EXPECT_EQ(both, whole) << "cut at " << cut;
    }
  }
}

TEST_F(LineReaderTest, SaysWhyAFileCannotBeOpened) {
  const auto reader = LineReader::open(path_ + "/nowhere", 100, {});
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error(), "cannot be opened: No such file or directory");
}

TEST_F(LineReaderTest, RefusesWhatWouldNotEndOrKeepItWaiting) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path :
       {path_, std::string("/dev/null"), std::string("/dev/zero"), std::string("/proc/self")}) {
    const auto reader = LineReader::open(path, 100, {});
    ASSERT_FALSE(reader) << path;
    EXPECT_EQ(reader.error(), "is not a regular file");
  }
}

}  // namespace
}  // namespace mapgate::engine
