#include "twinkle/server/replay/brief.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

TEST(Brief, ABeginningHasWholeCharacters) {
  EXPECT_EQ(beginning("abc", 3), "abc");
  EXPECT_EQ(beginning("abc", 2), "ab");
  EXPECT_EQ(beginning("a\u20acb", 4), "a\u20ac");
  EXPECT_EQ(beginning("a\u20acb", 3), "a");
  EXPECT_EQ(beginning("\u20ac", 1), "");
}

TEST(Brief, ALongTextIsCutOnceAndSaysSo) {
  const std::string most(1024, 'x'), more = most + "y", cut = brief(more);
  EXPECT_EQ(brief(most), most);
  EXPECT_EQ(cut, std::string(1021, 'x') + "...");
  EXPECT_EQ(brief(cut), cut);
}

}  // namespace
}  // namespace twinkle::server
