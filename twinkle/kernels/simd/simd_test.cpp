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
  if (may_use_avx512()) {
    EXPECT_EQ(&best_simd(), sets.front());
  } else {
    EXPECT_FALSE(std::string(best_simd().name).starts_with("avx512"));
  }
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

// 37 logits: whole vectors and a tail in every set.
TEST(Simd, EverySetComputesTheSoftmaxOfTheFormula) {
  std::vector<float> logits(37);
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 7) * 0.7f - static_cast<float>(i) * 0.1f;
    total += std::exp(double{logits[i]} / 2);
  }
  for (const Simd* set : supported_simd()) {
    const RowStats got = set->f32.softmax_stats(logits.data(), 37, 33, 2, true);
    EXPECT_NEAR(got.logprob, logits[33] / 2.0 - std::log(total), 1e-5) << set->name;
    auto grad = logits;
    set->f32.softmax_grad(grad.data(), 37, 33, 2, {got, 3});
    auto both = logits;
    set->f32.softmax_grad(both.data(), 37, 33, 2, {got, 3, -5});
    for (size_t i = 0; i < grad.size(); ++i) {
      const double logp = logits[i] / 2.0 - std::log(total), p = std::exp(logp);
      EXPECT_NEAR(grad[i], ((i == 33) - p) * 3 / 2, 1e-5) << set->name << " element " << i;
      EXPECT_NEAR(both[i] - grad[i], 5 * p * (logp + got.entropy) / 2, 1e-5)
          << set->name << " element " << i;
    }
  }
}

TEST(Simd, EverySetRoundsToBf16ToTheNearestEvenAndKeepsNaN) {
  // Gate 30 makes silu(gate) 30 exactly: y is 30 * up, rounded.
  const c10::BFloat16 gate(30.0f);
  for (const Simd* set : supported_simd()) {
    for (const float up : {1.0f, 1.0078125f, 1.0234375f, -3.3f, std::nanf("")}) {
      const c10::BFloat16 x(up);
      c10::BFloat16 y;
      set->bf16.swiglu(&gate, &x, 1, &y);
      const c10::BFloat16 want(30.0f * static_cast<float>(x));
      if (std::isnan(up)) {
        EXPECT_TRUE(std::isnan(static_cast<float>(y))) << set->name;
      } else {
        EXPECT_EQ(static_cast<float>(y), static_cast<float>(want)) << set->name << " " << up;
      }
    }
  }
}

}  // namespace
}  // namespace twinkle::kernels
