#include "twinkle/kernels/random/uniform.h"

#include <gtest/gtest.h>

#include <vector>

#include "twinkle/base/random.h"

namespace twinkle::kernels {
namespace {

TEST(Uniform, HasTheBitsOfTheStreamNumberByNumber) {
  for (const size_t n : {size_t{1}, size_t{7}, size_t{40'000}}) {
    std::vector<float> out(n + 1, 9.0f);
    fill_uniform(5, 0.3, std::span(out).first(n));
    for (size_t k = 0; k < n; ++k)
      ASSERT_EQ(out[k], static_cast<float>(0.3 * (2 * uniform_at(5, k) - 1))) << k;
    EXPECT_EQ(out[n], 9.0f) << "nothing beyond the end";
  }
}

}  // namespace
}  // namespace twinkle::kernels
