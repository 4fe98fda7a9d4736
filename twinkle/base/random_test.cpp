#include "twinkle/base/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace twinkle {
namespace {

TEST(Random, UniformNumbersHaveTheRightMeanAndVarianceAndCorrelateWithNothing) {
  const int n = 200000;
  double sum = 0, squares = 0, product = 0;
  for (int i = 0; i < n; ++i) {
    const double a = uniform_at(key_of(7, "lora"), i), b = uniform_at(key_of(8, "lora"), i);
    ASSERT_GE(a, 0);
    ASSERT_LT(a, 1);
    sum += a;
    squares += a * a;
    product += (a - 0.5) * (b - 0.5);
  }
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.003);
  EXPECT_NEAR(product / n, 0, 4.0 / 12 / std::sqrt(n));
}

TEST(Random, KeysDependOnEveryPartAndOnTheirOrder) {
  EXPECT_NE(key_of(key_of(1, 2), 3), key_of(key_of(1, 3), 2));
  EXPECT_NE(key_of(1, "a"), key_of(1, "b"));
  EXPECT_EQ(key_of(1, "a"), key_of(1, "a"));
}

}  // namespace
}  // namespace twinkle
