#include "twinkle/text/stream/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace twinkle::text {
namespace {

// Each token is a byte; a character that is cut at the end is U+FFFD, as tokenizers write it.
std::string decode(std::span<const int64_t> ids) {
  std::string out;
  for (const int64_t id : ids) out += static_cast<char>(id);
  size_t begin = out.size();
  while (begin > 0 && (static_cast<unsigned char>(out[begin - 1]) & 0xC0U) == 0x80U) --begin;
  if (begin == 0) return out;
  const auto first = static_cast<unsigned char>(out[begin - 1]);
  const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (out.size() - (begin - 1) < length) out.replace(begin - 1, std::string::npos, "\xEF\xBF\xBD");
  return out;
}

TEST(TextPieces, WaitForWholeCharactersAndAreTheTextTogether) {
  const std::string text = "a\u00e9\u6f22\U0001F642 b";
  TextPieces pieces(decode);
  std::vector<std::string> given;
  for (const char byte : text) given.push_back(pieces.add(static_cast<unsigned char>(byte)));
  EXPECT_EQ(given, (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u6f22", "", "", "",
                                             "\U0001F642", " ", "b"}));
  EXPECT_EQ(pieces.rest(), "");
  EXPECT_EQ(pieces.text(), text);
  EXPECT_EQ(pieces.num_tokens(), std::ssize(text));
}

TEST(TextPieces, GiveACharacterThatIsCutWithTheLastToken) {
  TextPieces pieces(decode), stopped(decode);
  for (TextPieces* each : {&pieces, &stopped}) EXPECT_EQ(each->add('a'), "a");
  EXPECT_EQ(pieces.add_last(0xE6), "\xEF\xBF\xBD");
  EXPECT_EQ(pieces.text(), "a\xEF\xBF\xBD");
  EXPECT_EQ(stopped.add(0xE6), "");
  EXPECT_EQ(stopped.text(), "a");
  EXPECT_EQ(stopped.rest(), "\xEF\xBF\xBD");
}

TEST(TextPieces, DecodeNoMoreThanAFewTokensAtATime) {
  size_t most = 0;
  TextPieces pieces([&](std::span<const int64_t> ids) {
    most = std::max(most, ids.size());
    return decode(ids);
  });
  for (int i = 0; i < 1000; ++i) pieces.add('a' + i % 26);
  EXPECT_LE(most, 2U);
}

}  // namespace
}  // namespace twinkle::text
