#include "twinkle/server/bodies/num_values.h"

#include <gtest/gtest.h>

#include <string>

namespace twinkle::server {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

TEST(NumValues, CountsWhateverIsAValueAndNoKeys) {
  EXPECT_EQ(num_values(R"({"a": [1, -2.5e9, "1, [2]", true, null, {}, []], "b": {"c": 1}})", kMany),
            11);
  EXPECT_EQ(num_values("18446744073709551615", kMany), 1);
  EXPECT_EQ(num_values(R"({"a": 1, "a": 2})", kMany), 3) << "also those that another replaces";
}

TEST(NumValues, EndsBehindTheMostAndWhereTheTextIsNoJson) {
  const std::string ones = "[1,1,1,1,1,1,1";  // and the array
  EXPECT_EQ(num_values(ones, kMany), 8);
  EXPECT_EQ(num_values(ones, 3), 4);
  EXPECT_EQ(num_values(ones, 7), 8);
  EXPECT_EQ(num_values(ones, 8), 8);
  EXPECT_EQ(num_values("[1,1,x,1]", kMany), 3);
  EXPECT_EQ(num_values("", kMany), 0);
  EXPECT_EQ(num_values(std::string(200, '['), kMany), 128);
}

}  // namespace
}  // namespace twinkle::server
