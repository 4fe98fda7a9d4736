#include "twinkle/kernels/swiglu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

class SwigluOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  at::Tensor random(at::IntArrayRef sizes) const {
    return (4 * at::randn(sizes, at::kDouble)).to(GetParam());
  }
  // Doubles of aten's, which takes tanh from 1, are good for 13 digits only.
  static at::Tensor slope_of_gelu(const at::Tensor& g) {
    const double k = std::sqrt(8 / std::numbers::pi);
    const at::Tensor z = k * (g + 0.044715 * g.pow(3)), dz = k * (1 + 3 * 0.044715 * g.square());
    return at::sigmoid(z) * (1 + g * dz * at::sigmoid(-z));
  }
  // Relative to 1 + |truth|: rounding to the type is the whole of the error.
  void expect_close(const at::Tensor& got, const at::Tensor& truth) const {
    const double limit = GetParam() == at::kDouble  ? 1e-14
                         : GetParam() == at::kFloat ? 1e-6
                                                    : 1.0 / 256;
    const auto error = (got.to(at::kDouble) - truth).abs() / (1 + truth.abs());
    EXPECT_LT(error.max().item<double>(), limit);
  }
};

TEST_P(SwigluOfType, forward_and_backward_equal_the_plain_formula) {
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    const auto gate = random({7, 33}), up = random({7, 33}), grad = random({7, 33});
    const auto g = gate.to(at::kDouble).requires_grad_(), u = up.to(at::kDouble).requires_grad_();
    const auto y = at::silu(g) * u;
    y.backward(grad.to(at::kDouble));
    expect_close(swiglu(gate, up, *simd), y);
    const auto both = swiglu_backward(grad, gate, up, SwigluNeeds::kBoth, *simd);
    expect_close(both.gate, g.grad());
    expect_close(both.up, u.grad());
  }
}

TEST_P(SwigluOfType, with_gelu_both_equal_atens_tanh_form) {
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    const auto gate = random({7, 33}), up = random({7, 33}), grad = random({7, 33});
    const auto g = gate.to(at::kDouble).requires_grad_(), u = up.to(at::kDouble).requires_grad_();
    const auto y = at::gelu(g, "tanh") * u;
    y.backward(grad.to(at::kDouble));
    expect_close(geglu(gate, up, *simd), y);
    const auto both = geglu_backward(grad, gate, up, SwigluNeeds::kBoth, *simd);
    expect_close(both.gate, slope_of_gelu(gate.to(at::kDouble)) * up * grad);
    EXPECT_TRUE(at::allclose(both.gate.to(at::kDouble), g.grad(), 1e-2, 1e-2));
    expect_close(both.up, u.grad());
  }
}

TEST_P(SwigluOfType, only_the_wanted_gradient_is_made) {
  const auto x = random({5});
  const auto gate = swiglu_backward(x, x, x, SwigluNeeds::kGate);
  const auto up = swiglu_backward(x, x, x, SwigluNeeds::kUp);
  EXPECT_TRUE(gate.gate.defined() && !gate.up.defined());
  EXPECT_TRUE(!up.gate.defined() && up.up.defined());
}

TEST_P(SwigluOfType, an_element_has_the_same_bits_wherever_it_stands) {
  const auto gate = random({101}), up = random({101});
  const auto y = swiglu(gate, up), z = geglu(gate, up);
  for (int64_t i = 0; i < 101; ++i) {
    EXPECT_TRUE(at::equal(swiglu(gate.slice(0, i), up.slice(0, i)), y.slice(0, i)));
    EXPECT_TRUE(at::equal(geglu(gate.slice(0, i), up.slice(0, i)), z.slice(0, i)));
  }
}

TEST_P(SwigluOfType, far_gates_neither_overflow_nor_hide_a_nan) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto gate = at::tensor({-1e4, -100.0, -89.0, 89.0, 1e4, kInf, std::nan("")}).to(GetParam());
  const auto y = swiglu(gate, at::ones_like(gate)).to(at::kDouble);
  EXPECT_LT(y.slice(0, 0, 3).abs().max().item<double>(), 1e-30);
  EXPECT_TRUE(at::equal(y.slice(0, 3, 6), gate.slice(0, 3, 6).to(at::kDouble)));
  EXPECT_TRUE(y[6].isnan().item<bool>());
  const auto z = geglu(gate, at::ones_like(gate)).to(at::kDouble);
  EXPECT_LT(z.slice(0, 0, 3).abs().max().item<double>(), 1e-30);
  EXPECT_TRUE(at::equal(z.slice(0, 3, 6), gate.slice(0, 3, 6).to(at::kDouble)));
  EXPECT_TRUE(z[6].isnan().item<bool>());
  const auto far = at::tensor({-3e38, -1e20, -100.0, 100.0, 1e20, 3e38}).to(GetParam());
  const auto one = at::ones_like(far);
  const auto slope = geglu_backward(one, far, one, SwigluNeeds::kGate).gate.to(at::kDouble);
  EXPECT_LT(slope.slice(0, 0, 3).abs().max().item<double>(), 1e-30);
  EXPECT_TRUE(at::equal(slope.slice(0, 3, 6), at::ones({3}, at::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(types, SwigluOfType,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Swiglu, mistakes_are_named) {
  const auto x = at::ones({4});
  EXPECT_THROW(swiglu(x, at::ones({5})), Error);
  EXPECT_THROW(swiglu(x, x.to(at::kDouble)), Error);
  EXPECT_THROW(swiglu(x.to(at::kHalf), x.to(at::kHalf)), Error);
  EXPECT_THROW(swiglu_backward(at::ones({5}), x, x, SwigluNeeds::kBoth), Error);
  EXPECT_THROW(geglu(x, at::ones({5})), Error);
  EXPECT_THROW(geglu_backward(at::ones({5}), x, x, SwigluNeeds::kBoth), Error);
  const auto meta = at::ones({4}, at::device(at::kMeta));
  EXPECT_THROW(geglu(meta, meta), Error);
}

}  // namespace
}  // namespace twinkle::kernels
