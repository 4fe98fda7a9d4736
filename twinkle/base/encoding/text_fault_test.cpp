#include "twinkle/base/encoding/text_fault.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/json.h"

namespace twinkle {
namespace {

using namespace std::string_literals;

std::string cause_of(const std::string& text) {
  const std::string error = error_of([&] { parse_json(text, "F"); });
  return error.substr(std::min(error.size(), error.find(": ", 6) + 2));
}

TEST(TextFault, AnotherEncodingIsTheCauseByName) {
  const std::string utf16 = "UTF-16, not UTF-8; save the file as UTF-8";
  const std::string no_utf8 = "invalid UTF-8; save the file as UTF-8";
  EXPECT_EQ(cause_of("\xFF\xFE{\0\"\0a\0\"\0"s), utf16);
  EXPECT_EQ(cause_of("\xFE\xFF\0{\0\""s), utf16);
  EXPECT_EQ(cause_of("{\0\"\0a\0\"\0"s), utf16);
  EXPECT_EQ(cause_of("\0{\0\"\0a"s), utf16);
  EXPECT_EQ(cause_of("{\"a\": \"caf\xE9\"}"), no_utf8);
  EXPECT_EQ(cause_of("{\"a\": \"caf\xE9 au lait, sans sucre\", \"b\": [1, 2, 3]}"), no_utf8);
  EXPECT_EQ(encoding_fault("a,b\nc,d\n"s), "");
  EXPECT_EQ(encoding_fault("a\0,\0b\0"s), utf16);
  EXPECT_EQ(encoding_fault("a,caf\xE9"), no_utf8);
}

TEST(TextFault, ANulInTextOfOneByteACharacterIsNoUtf16) {
  EXPECT_EQ(cause_of("{\"a\": \"a\0b\"}"s),
            "a NUL character; write \\u0000 in a string, or remove it");
  EXPECT_EQ(encoding_fault("a,b\n\0c,d\n"s), "a NUL character; remove it");
  EXPECT_EQ(encoding_fault("a,b\n\0c,caf\xE9\n"s), "a NUL character; remove it");
  EXPECT_EQ(encoding_fault("a,caf\xE9\n\0c,d\n"s), "invalid UTF-8; save the file as UTF-8");
}

TEST(TextFault, PythonsSpellingsAreTheCauseByName) {
  EXPECT_EQ(cause_of("{'a': 1}"),
            "single quotes; JSON has double quotes, as Python's json.dumps writes them");
  EXPECT_EQ(cause_of("{\"a\": NaN}"), "NaN is not JSON; write null, or leave the field out");
  EXPECT_EQ(cause_of("{\"a\": -Infinity}"),
            "Infinity is not JSON; write null, or leave the field out");
  EXPECT_EQ(cause_of("{\"a\": None}"),
            "None is Python, not JSON; write null, true or false, as Python's json.dumps does");
}

TEST(TextFault, OneByteOrderMarkIsSkippedAndASecondNamed) {
  EXPECT_EQ(parse_json("\xEF\xBB\xBF{\"a\": 1}", "F"), (Json{{"a", 1}}));
  EXPECT_EQ(cause_of("\xEF\xBB\xBF\xEF\xBB\xBF{}"), "a byte order mark; remove it");
}

TEST(TextFault, AGitLfsPointerIsTheCauseByName) {
  EXPECT_EQ(cause_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            kLfsPointer);
}

TEST(TextFault, OtherErrorsKeepTheParsersWords) {
  EXPECT_EQ(cause_of("{\"a\": }"), "syntax error");
  EXPECT_EQ(cause_of("{\"a\": Nothing}"), "syntax error");
  EXPECT_EQ(cause_of("{\"a\": 1"), "incomplete JSON");
}

}  // namespace
}  // namespace twinkle
