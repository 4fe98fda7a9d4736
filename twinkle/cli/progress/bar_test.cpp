#include "twinkle/cli/progress/bar.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace twinkle::cli {
namespace {

TEST(Bar, HasALineForEachTenthWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    Bar bar("writing", 100, "MB");
    for (int done = 1; done <= 100; ++done) bar.show(done, "more");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_TRUE(text.starts_with("writing ##.................. 10/100 MB  ")) << text;
  EXPECT_NE(text.find(" MB/s  0:00 left  more\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace twinkle::cli
