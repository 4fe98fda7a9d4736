#include "twinkle/base/log/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "twinkle/base/error_for_test.h"

namespace twinkle {
namespace {

std::string written(Level least, Level level, const std::string& text) {
  testing::internal::CaptureStderr();
  Log(least).write(level, text);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, ALineHasItsTimeAndLevel) {
  const std::regex line(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d warning a \{\} b\n)");
  const std::string text = written(Level::kInfo, Level::kWarning, "a {} b");
  EXPECT_TRUE(std::regex_match(text, line)) << text;
}

TEST(Log, LowerLevelsAreLeftOut) {
  EXPECT_NE(written(Level::kInfo, Level::kInfo, "a"), "");
  EXPECT_EQ(written(Level::kInfo, Level::kDebug, "a"), "");
  EXPECT_EQ(written(Level::kOff, Level::kError, "a"), "");
  EXPECT_FALSE(Log(Level::kError).takes(Level::kWarning));
  EXPECT_TRUE(Log(Level::kError).takes(Level::kError));
  Log log(Level::kError);
  log.set_least(Level::kDebug);
  EXPECT_TRUE(log.takes(Level::kDebug));
  log.set_least(Level::kOff);
  EXPECT_FALSE(log.takes(Level::kError));
}

TEST(Log, NoTextMakesASecondLine) {
  const std::string text = written(Level::kInfo, Level::kInfo, "a\nb\x1b[2J\xc3");
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
  EXPECT_TRUE(text.ends_with(" info a?b?[2J?\n")) << text;
}

TEST(Log, LevelsHaveNames) {
  for (const std::string& name : level_names())
    EXPECT_EQ(level_names()[static_cast<size_t>(level_named(name))], name);
  EXPECT_EQ(error_of([] { level_named("loud"); }),
            "base: the log's level is 'loud', it must be debug, info, warning, error or off");
}

}  // namespace
}  // namespace twinkle
