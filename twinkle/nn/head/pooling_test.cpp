#include "twinkle/nn/head/pooling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::nn {
namespace {

const std::vector<int64_t> kLast{3, 8, 11};

// By ATen's own operators.
at::Tensor plain_pooling(const at::Tensor& hidden) {
  const at::Tensor rows = hidden.index_select(0, at::tensor(at::ArrayRef<int64_t>(kLast)));
  return rows / rows.norm(2, {1}, true).clamp_min(1e-12);
}

TEST(PoolLast, IsTheLastRowDividedByItsNorm) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = (at::randn({12, 37}, at::kDouble) * 40).to(type);
    const at::Tensor out = pool_last(hidden, kLast);
    ASSERT_EQ(out.scalar_type(), at::kDouble);
    EXPECT_LT((out - plain_pooling(hidden.to(at::kDouble))).abs().max().item<double>(), 1e-14);
    EXPECT_LT((out.norm(2, {1}) - 1).abs().max().item<double>(), 1e-14);
  }
}

TEST(PoolLast, HasTheGradientOfATensAutogradAndOfDifferences) {
  const at::Tensor hidden = kernels::leaf({12, 9}), grad = at::randn({3, 9}, at::kDouble);
  const auto expected = torch::autograd::grad({plain_pooling(hidden)}, {hidden}, {grad})[0];
  const at::Tensor before = at::randn({12, 9}, at::kDouble);
  at::Tensor d = before.clone();
  add_pool_last_grad(d, hidden.detach(), kLast, grad);
  EXPECT_LT((d - before - expected).abs().max().item<double>(), 1e-13);
  const at::Tensor x = hidden.detach().clone();
  const auto slope =
      kernels::finite_difference([&] { return (pool_last(x, kLast) * grad).sum(); }, x);
  EXPECT_LT((d - before - slope).abs().max().item<double>(), 1e-8);
}

TEST(PoolLast, OfARowOfZerosIsZeroWithAFiniteGradient) {
  const at::Tensor hidden = at::zeros({12, 4});
  EXPECT_TRUE(pool_last(hidden, kLast).eq(0).all().item<bool>());
  at::Tensor d = at::zeros({12, 4});
  add_pool_last_grad(d, hidden, kLast, at::ones({3, 4}, at::kDouble));
  EXPECT_TRUE(d.isfinite().all().item<bool>());
}

TEST(PoolLast, OfARowHasTheSameBitsAlone) {
  const at::Tensor hidden = at::randn({12, 300});
  const at::Tensor all = pool_last(hidden, kLast);
  for (int64_t s = 0; s < 3; ++s)
    EXPECT_TRUE(all[s].equal(pool_last(hidden, {kLast[static_cast<size_t>(s)]})[0]));
}

}  // namespace
}  // namespace twinkle::nn
