#include "twinkle/base/json.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(get_or<int64_t>(config, "n", 7), 7);
  EXPECT_EQ(get<double>(config, "p"), 0.5);
}

TEST(Json, PrettyTextParsesBackToTheSameValue) {
  const Json value = parse_json(R"({"a":[1,2.5,{"b":"c\n"}],"d":{},"e":[],"f":null})", "v");
  EXPECT_EQ(parse_json(pretty(value), "again"), value);
}

}  // namespace
}  // namespace twinkle
