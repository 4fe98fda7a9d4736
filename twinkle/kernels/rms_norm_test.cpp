#include "twinkle/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

constexpr double kEps = 1e-5;

double worst_of_norms(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

at::Tensor plain(const at::Tensor& x, const at::Tensor& w) {
  return x * (x.square().mean(-1, true) + kEps).rsqrt() * w;
}

class RmsNormOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  at::Tensor random(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::kDouble).to(GetParam());
  }
  double tolerance() const {
    return GetParam() == at::kDouble ? 1e-13 : GetParam() == at::kFloat ? 2e-6 : 3e-2;
  }
};

TEST_P(RmsNormOfType, added_before_it_is_the_sum_and_its_norm_bit_for_bit) {
  for (const Simd* simd : supported_simd()) {
    for (const int64_t width : {1, 7, 64, 65, 576}) {
      const auto x = random({70, width}), delta = random({70, width}), w = random({width});
      const auto both = add_rms_norm(x, delta, w, kEps, *simd);
      EXPECT_TRUE(at::equal(both.sum, x + delta)) << simd->name << " width " << width;
      EXPECT_TRUE(at::equal(both.normed, rms_norm(x + delta, w, kEps, *simd)));
      const auto wide = w.to(at::kDouble);
      const auto of_wide = add_rms_norm(x.t().contiguous().t(), delta, wide, kEps, *simd);
      EXPECT_TRUE(at::equal(of_wide.sum, both.sum));
      EXPECT_TRUE(at::equal(of_wide.normed, rms_norm(x + delta, wide, kEps, *simd)));
    }
  }
  expect_error("delta is",
               [&] { add_rms_norm(random({2, 8}), random({3, 8}), random({8}), kEps); });
}

TEST_P(RmsNormOfType, forward_and_backward_equal_the_plain_formula_at_every_width) {
  for (const Simd* simd : supported_simd()) {
    for (const int64_t width : {1, 7, 16, 64, 65, 100, 576}) {
      const auto x = random({5, width}), w = random({width}), grad = random({5, width});
      const auto wide_x = x.to(at::kDouble).requires_grad_();
      const auto wide_w = w.to(at::kDouble).requires_grad_();
      const auto y = plain(wide_x, wide_w);
      y.backward(grad.to(at::kDouble));
      EXPECT_LT(worst_of_norms(rms_norm(x, w, kEps, *simd), y), tolerance()) << simd->name << width;
      EXPECT_LT(worst_of_norms(rms_norm_backward(grad, x, w, kEps, *simd), wide_x.grad()),
                4 * (1 + wide_x.grad().abs().max().item<double>()) * tolerance())
          << simd->name << width;
      auto sum = at::ones({width}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
      const std::vector<int64_t> cu_seqlens{0, 2, 5};
      rms_norm_weight_grad(grad, x, kEps, cu_seqlens, sum, *simd);
      EXPECT_LT(worst_of_norms(sum - 1, wide_w.grad()), 1e-5) << simd->name << width;
    }
  }
}

TEST_P(RmsNormOfType, a_row_has_the_same_bits_alone_and_among_others) {
  const auto x = random({9, 3, 100}), w = random({100}), grad = random({9, 3, 100});
  const auto y = rms_norm(x, w, kEps), dx = rms_norm_backward(grad, x, w, kEps);
  for (int64_t t = 0; t < 9; ++t) {
    const auto row = x.slice(0, t, t + 1), g = grad.slice(0, t, t + 1);
    EXPECT_TRUE(at::equal(rms_norm(row, w, kEps), y.slice(0, t, t + 1)));
    EXPECT_TRUE(at::equal(rms_norm_backward(g, row, w, kEps), dx.slice(0, t, t + 1)));
  }
}

TEST_P(RmsNormOfType, a_weights_gradient_is_the_ordered_sum_of_that_of_each_sequence_alone) {
  const auto x = random({300, 2, 200}), grad = random({300, 2, 200});
  const auto type = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  const std::vector<int64_t> cu_seqlens{0, 7, 250, 300};
  const int threads = at::get_num_threads();
  auto expected = at::zeros({200}, type);
  for (size_t s = 0; s < 3; ++s) {
    auto part = at::zeros({200}, type);
    const int64_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
    const std::vector<int64_t> alone{0, end - begin};
    rms_norm_weight_grad(grad.slice(0, begin, end), x.slice(0, begin, end), kEps, alone, part);
    expected += part;
  }
  for (const int count : {1, 2, 5}) {
    at::set_num_threads(count);
    auto sum = at::zeros({200}, type);
    rms_norm_weight_grad(grad, x, kEps, cu_seqlens, sum);
    EXPECT_TRUE(at::equal(sum, expected)) << count;
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(types, RmsNormOfType,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(RmsNorm, mistakes_are_named) {
  const auto x = at::ones({4, 8}), w = at::ones({8});
  const std::vector<int64_t> cu_seqlens{0, 4}, short_of{0, 3};
  auto sum = at::zeros({8}), wrong = at::zeros({8}, at::kDouble);
  expect_error("weight is [7]", [&] { rms_norm(x, at::ones({7}), kEps); });
  expect_error("x is Half", [&] { rms_norm(x.to(at::kHalf), w, kEps); });
  expect_error("gradient is Float [4, 7]",
               [&] { rms_norm_backward(x.slice(1, 0, 7), x, w, kEps); });
  expect_error("sum is Double", [&] { rms_norm_weight_grad(x, x, kEps, cu_seqlens, wrong); });
  expect_error("must end at 4", [&] { rms_norm_weight_grad(x, x, kEps, short_of, sum); });
  EXPECT_EQ(sum.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace twinkle::kernels
