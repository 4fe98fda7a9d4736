#include "twinkle/text/tools/json_text.h"

#include <gtest/gtest.h>

#include <string>

namespace twinkle::text {
namespace {

// Python's json.loads takes and refuses the same.
TEST(JsonText, ValuesAreThoseOfJsonAndOfPython) {
  for (const char* text :
       {"0", "-0", "1.5e-3", "1E+2", "\"\"", R"("\u00e9\n\\\"")", "null", " true\n", "[]", "{ }",
        "[1, [2, {\"a\": []}]]", R"({"a": 1, "a": {"b": null}})", "NaN", "-Infinity", "[Infinity]",
        "\"\x7f\"", "\"ü\""})
    EXPECT_TRUE(is_json(text)) << text;
  for (const char* text : {"",
                           " ",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "1e",
                           "-",
                           "-NaN",
                           "nul",
                           "True",
                           "'a'",
                           "\"a",
                           "\"\n\"",
                           R"("\x")",
                           R"("\u12g4")",
                           R"("\u12)",
                           "[1,]",
                           "[1 2]",
                           "{\"a\"}",
                           "{\"a\": 1,}",
                           "{a: 1}",
                           "[1] 2",
                           "[}",
                           "\xEF\xBB\xBF"
                           "1",
                           "\xC2\xA0"
                           "1"})
    EXPECT_FALSE(is_json(text)) << text;
}

TEST(JsonText, DepthAndDigitsHaveTheirLimits) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + "1" + std::string(levels, ']');
  };
  EXPECT_TRUE(is_json(nested(kMaxJsonLevels)));
  EXPECT_FALSE(is_json(nested(kMaxJsonLevels + 1)));
  EXPECT_TRUE(is_json("-" + std::string(kMaxIntegerDigits, '7')));
  EXPECT_FALSE(is_json(std::string(kMaxIntegerDigits + 1, '7')));
  EXPECT_TRUE(is_json(std::string(kMaxIntegerDigits + 1, '7') + ".0"));
}

TEST(JsonText, MembersArePartsOfTheText) {
  const auto members = members_of(" { \"a\" : [1, {\"b\": 2}] , \"a\":\"x\"\n} ");
  ASSERT_TRUE(members && members->size() == 2);
  EXPECT_EQ(members->at(0).key, "\"a\"");
  EXPECT_EQ(members->at(0).value, "[1, {\"b\": 2}]");
  EXPECT_EQ(members->at(1).value, "\"x\"");
  EXPECT_TRUE(members_of("{}") && members_of("{}")->empty());
  for (const char* text :
       {"[]", "1", "", "{", "{\"a\": 1", "{\"a\": 1} x", "{\"a\": 1,}", "{1: 2}"})
    EXPECT_FALSE(members_of(text)) << text;
}

}  // namespace
}  // namespace twinkle::text
