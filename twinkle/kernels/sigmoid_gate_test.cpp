#include "twinkle/kernels/sigmoid_gate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

// For each type, a gate for each element and one for each row.
class SigmoidGate : public testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
 protected:
  void SetUp() override { at::manual_seed(8); }
  static at::Tensor random(at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).to(std::get<0>(GetParam()));
  }
  static at::Tensor leaf(const at::Tensor& x) {
    return x.to(at::kDouble).detach().requires_grad_();
  }
  static void expect_close(const at::Tensor& got, const at::Tensor& truth) {
    const at::ScalarType type = std::get<0>(GetParam());
    ASSERT_EQ(got.sizes(), truth.sizes());
    ASSERT_EQ(got.scalar_type(), type);
    const double limit = type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-6 : 1.0 / 128;
    const auto error = (got.to(at::kDouble) - truth.detach()).abs() / (1 + truth.detach().abs());
    EXPECT_LT(error.max().item<double>(), limit);
  }
  const int64_t columns_ = std::get<1>(GetParam());
};

TEST_P(SigmoidGate, AndItsGradientsEqualTorchs) {
  const at::Tensor x = random({7, 33}), gate = 5 * random({7, columns_}), grad = random({7, 33});
  const at::Tensor xs = leaf(x), gs = leaf(gate), y = xs * at::sigmoid(gs);
  y.backward(grad.to(at::kDouble));
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    expect_close(sigmoid_gate(x, gate, *simd), y);
    const auto grads = sigmoid_gate_backward(grad, x, gate, *simd);
    expect_close(grads.x, xs.grad());
    expect_close(grads.gate, gs.grad());
  }
}

TEST_P(SigmoidGate, ARowHasItsBitsWhereverItStands) {
  const at::Tensor x = random({300, 67}), gate = 5 * random({300, columns_ == 1 ? 1 : 67}),
                   grad = random({300, 67}), all = sigmoid_gate(x, gate);
  const auto grads = sigmoid_gate_backward(grad, x, gate);
  for (const int64_t i : {0, 131, 299}) {
    const auto row = [&](const at::Tensor& t) { return t.narrow(0, i, 1); };
    EXPECT_TRUE(at::equal(sigmoid_gate(row(x), row(gate)), row(all)));
    const auto mine = sigmoid_gate_backward(row(grad), row(x), row(gate));
    EXPECT_TRUE(at::equal(mine.x, row(grads.x)) && at::equal(mine.gate, row(grads.gate)));
  }
  for (int64_t i = 0; i < 67; ++i) {
    const at::Tensor mine = columns_ == 1 ? gate : gate.slice(1, i, i + 1);
    EXPECT_TRUE(at::equal(sigmoid_gate(x.slice(1, i, i + 1), mine), all.slice(1, i, i + 1)));
  }
}

TEST_P(SigmoidGate, AGateThatFitsNoRowIsRefused) {
  const at::Tensor x = random({7, 33});
  EXPECT_THROW(sigmoid_gate(x, random({6, columns_})), Error);
  EXPECT_THROW(sigmoid_gate(x, random({7, 2})), Error);
  EXPECT_THROW(sigmoid_gate(x, random({columns_})), Error);
  EXPECT_THROW(sigmoid_gate_backward(random({7, 1}), x, random({7, columns_})), Error);
}

INSTANTIATE_TEST_SUITE_P(Types, SigmoidGate,
                         testing::Combine(testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                                          testing::Values(33, 1)));

}  // namespace
}  // namespace twinkle::kernels
