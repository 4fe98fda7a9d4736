#include "twinkle/base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "twinkle/base/error_for_test.h"

namespace twinkle {
namespace {

TEST(Json, NamesTheLineOfABrokenDocument) {
  EXPECT_NE(error_of([] { parse_json("{\n\"a\": 1,\n\"b\" 2}", "x.json"); }).find("x.json line 3"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_json("{} {}", "x"); }).find("extra data"), std::string::npos);
}

TEST(Json, NamesTheFieldItsValueAndWhatWasExpected) {
  const Json config = parse_json(R"({"rank": "eight", "p": 0.5, "n": null})", "c");
  EXPECT_EQ(error_of([&] { get<int64_t>(config, "rank"); }),
            "json: field 'rank' is \"eight\", expected an integer");
  EXPECT_EQ(error_of([&] { get<int64_t>(config, "p"); }),
            "json: field 'p' is 0.5, expected an integer");
  EXPECT_EQ(error_of([&] { get<bool>(config, "x"); }), "json: field 'x' is missing");
  EXPECT_EQ(error_of([&] { get<double>(config, "n"); }),
            "json: field 'n' is null, expected a number");
  EXPECT_EQ(get_or<int64_t>(config, "n", 7), 7);
  EXPECT_EQ(get<double>(config, "p"), 0.5);
}

TEST(Json, AnIntegerFitsIntoSixtyFourBits) {
  const Json fields = parse_json(R"({"a": 1e300, "b": -1e19, "c": 4e3})", "c");
  EXPECT_NE(error_of([&] { get<int64_t>(fields, "a"); }), "no error");
  EXPECT_NE(error_of([&] { get<int64_t>(fields, "b"); }), "no error");
  EXPECT_EQ(get<int64_t>(fields, "c"), 4000);
}

TEST(Json, DepthAndNumberOfValuesAreBounded) {
  EXPECT_NE(error_of([] { parse_json(std::string(129, '['), "x"); }).find("too deep"),
            std::string::npos);
  std::string many = "[0";
  for (int i = 0; i < (1 << 22); ++i) many += ",0";
  EXPECT_EQ(error_of([&] { parse_json(many + "]", "x"); }),
            "json: x line 1 column 8388609: more than 4194304 values");
}

TEST(Json, AnErrorNamesItsLineAndItsByteInThat) {
  EXPECT_EQ(error_of([] { parse_json("{\n\"a\": \"\xC3\xBC\n\"}", "x"); }),
            "json: x line 2 column 9: syntax error");
}

TEST(Json, PrettyTextParsesBackToTheSameValue) {
  const Json value = parse_json(R"({"a":[1,2.5,{"b":"c\n"}],"d":{},"e":[],"f":null})", "v");
  EXPECT_EQ(parse_json(pretty(value), "again"), value);
}

TEST(Json, TextThatIsNoDocumentIsNothing) {
  EXPECT_EQ(json_in(" {\"a\": [0.1]} "), Json(JsonObject{{"a", JsonArray{0.1}}}));
  for (const char* text : {"", "{", "{} {}", "[1,]", "nul"}) EXPECT_FALSE(json_in(text)) << text;
}

// tokenizer_config.json has 10^30 for "no limit".
TEST(Json, NumbersOutOfRangeAreRoundedUnlessTheyAreToBeRefused) {
  const std::string_view text = " [1000000000000000019884624838656, 1e999]";
  const Json rounded = parse_json(text, "config");
  EXPECT_EQ(rounded.at(0).as_double(), 1e30);
  EXPECT_TRUE(std::isinf(rounded.at(1).as_double()));
  std::string cause;
  size_t used = 0;
  EXPECT_TRUE(parse_json_prefix(text, used, cause, OutOfRange::kRefuse).is_null());
  EXPECT_EQ(cause,
            "the integer 1000000000000000019884624838656 is beyond 64 bits; write it as a string");
  EXPECT_EQ(used, 2u);
  EXPECT_EQ(parse_json_prefix("[1] x", used, cause, OutOfRange::kRefuse), Json(JsonArray{1}));
  EXPECT_EQ(cause, "");
}

// strtod is the reference: it rounds correctly, as every JSON writer expects of a reader.
TEST(Json, DoublesReadBackToTheSameBits) {
  uint64_t bits = 0x9E3779B97F4A7C15;
  for (int i = 0; i < 1000;) {
    bits = bits * 6364136223846793005 + 1442695040888963407;
    const auto value = std::bit_cast<double>(bits);
    if (!std::isfinite(value)) continue;
    ++i;
    char digits[64];
    std::snprintf(digits, sizeof(digits), "%.17g", value);
    if (std::string_view(digits).find_first_of(".e") == std::string_view::npos) continue;
    const Json read = parse_json(std::string("[") + digits + "]", "numbers");
    EXPECT_EQ(read.get_array()[0].get_double(), std::strtod(digits, nullptr)) << digits;
    EXPECT_EQ(parse_json(pretty(Json(value)), "again").get_double(), value) << digits;
  }
}

}  // namespace
}  // namespace twinkle
