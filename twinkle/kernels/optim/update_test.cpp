#include "twinkle/kernels/optim/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {
namespace {

constexpr size_t kSize = 37;  // whole vectors and a tail in every set

std::vector<float> wave(float phase) {
  std::vector<float> out(kSize);
  for (size_t i = 0; i < kSize; ++i) out[i] = std::sin(phase + static_cast<float>(i));
  return out;
}

TEST(Update, EverySetTakesAdamsStepOfTheFormula) {
  const AdamFactors f{.scale = 0.5f,
                      .l2 = 0.1f,
                      .shrink = 0.01f,
                      .first = 0.1f,
                      .second = 0.001f,
                      .keep_second = 0.999f,
                      .root = 0.3f,
                      .eps = 1e-8f,
                      .rate = 0.2f};
  for (const Simd* set : supported_simd()) {
    const auto grad = wave(0), p = wave(1), m = wave(2);
    auto v = wave(3);
    for (float& x : v) x = x * x;
    auto new_p = p, new_m = m, new_v = v;
    set->adam(f, {grad.data(), new_p.data(), new_m.data(), new_v.data()}, kSize);
    for (size_t i = 0; i < kSize; ++i) {
      const double g = grad[i] * 0.5 + p[i] * 0.1, mean = m[i] + (g - m[i]) * 0.1;
      const double square = v[i] * 0.999 + g * g * 0.001;
      const double step = 0.2 * mean / (std::sqrt(square) / 0.3 + 1e-8) + p[i] * 0.01;
      EXPECT_NEAR(new_m[i], mean, 1e-6) << set->name << " " << i;
      EXPECT_NEAR(new_v[i], square, 1e-6) << set->name << " " << i;
      EXPECT_NEAR(new_p[i], p[i] - step, 1e-5 * (1 + std::abs(step))) << set->name << " " << i;
    }
  }
}

TEST(Update, EverySetTakesTheStepOfGradientDescentWithAndWithoutMomentum) {
  const SgdFactors f{.scale = 2,
                     .l2 = 0.1f,
                     .momentum = 0.9f,
                     .share = 0.8f,
                     .own = 0.5f,
                     .of_buffer = 0.7f,
                     .rate = 0.3f};
  for (const Simd* set : supported_simd()) {
    for (const bool momentum : {true, false}) {
      const auto grad = wave(0), p = wave(1), b = momentum ? wave(2) : std::vector<float>(kSize);
      auto new_p = p, new_b = b;
      set->sgd(f, {grad.data(), new_p.data(), momentum ? new_b.data() : nullptr}, kSize);
      for (size_t i = 0; i < kSize; ++i) {
        const double g = grad[i] * 2 + p[i] * 0.1, buffer = b[i] * 0.9 + g * 0.8;
        EXPECT_NEAR(new_p[i], p[i] - 0.3 * (0.5 * g + 0.7 * buffer), 1e-5) << set->name;
        if (!momentum) continue;
        EXPECT_NEAR(new_b[i], buffer, 1e-5) << set->name;
      }
    }
  }
}

TEST(Update, SquaresAreSummedInFloat64AndTheOneCalledIsTheBestSets) {
  std::vector<float> x(kSize, 1e-4f);
  x[0] = 1e4f;
  const double want = 1e8 + (kSize - 1) * 1e-8;
  for (const Simd* set : supported_simd()) {
    EXPECT_NEAR(set->sum_of_squares(x.data(), kSize), want, 1e-7) << set->name;
  }
  EXPECT_EQ(sum_of_squares(x.data(), kSize), best_simd().sum_of_squares(x.data(), kSize));
}

}  // namespace
}  // namespace twinkle::kernels
