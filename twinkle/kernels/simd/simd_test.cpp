#include "twinkle/kernels/simd/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace twinkle::kernels {
namespace {

TEST(Simd, EndsWithThePortableSetThatEveryProcessorRuns) {
  const auto sets = supported_simd();
  ASSERT_FALSE(sets.empty());
  EXPECT_EQ(std::string(sets.back()->name), "portable");
  EXPECT_EQ(&best_simd(), sets.front());
}

// 37 elements: whole vectors and a tail in every set.
TEST(Simd, EverySetComputesTheSwigluOfTheFormula) {
  std::vector<float> gate(37), up(37), y(37);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = static_cast<float>(i) * 0.3f - 5.0f;
    up[i] = 1.0f - static_cast<float>(i) * 0.1f;
  }
  for (const Simd* set : supported_simd()) {
    set->f32.swiglu(gate.data(), up.data(), static_cast<int64_t>(y.size()), y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double expected = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      EXPECT_NEAR(y[i], expected, 1e-5) << set->name << " element " << i;
    }
  }
}

}  // namespace
}  // namespace twinkle::kernels
