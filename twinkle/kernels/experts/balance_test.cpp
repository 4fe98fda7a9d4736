#include "twinkle/kernels/experts/balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

const std::vector<int64_t> kStarts{0, 3, 4, 9};

at::Tensor as_tensor(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).view({3, -1});
}

TEST(Balance, SumsAreThoseOfEachSequencesRows) {
  at::manual_seed(1);
  const at::Tensor scores = at::softmax(at::randn({9, 5}), -1);
  const at::Tensor order = at::rand({9, 5}).argsort(int64_t{-1}, false);
  const at::Tensor ids = order.narrow(1, 0, 2).to(at::kInt).contiguous();
  const ChoiceSums got = choice_sums(scores, ids, kStarts);
  const at::Tensor chose = at::zeros({9, 5}, at::kDouble).scatter(1, ids.to(at::kLong), 1.0);
  for (size_t s = 0; s < 3; ++s) {
    const auto rows = [&](const at::Tensor& of) { return of.slice(0, kStarts[s], kStarts[s + 1]); };
    const auto row = static_cast<int64_t>(s);
    EXPECT_TRUE(at::equal(as_tensor(got.counts)[row], rows(chose).sum(0)));
    EXPECT_TRUE(at::allclose(as_tensor(got.scores)[row], rows(scores.to(at::kDouble)).sum(0)));
  }
}

TEST(Balance, SlopesGoThroughTheSoftmaxAndRowsWithoutOnesStay) {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({9, 5}, at::kDouble).requires_grad_();
  at::Tensor slopes = at::randn({3, 5}, at::kDouble);
  slopes[1].zero_();
  const at::Tensor of_rows =
      slopes.index_select(0, at::tensor({0, 0, 0, 1, 2, 2, 2, 2, 2}, at::kLong));
  const at::Tensor p = at::softmax(logits, -1);
  const at::Tensor want = torch::autograd::grad({(p * of_rows).sum()}, {logits})[0];
  const at::Tensor before = at::randn({9, 5}, at::kDouble), got = before.clone();
  add_slopes(p.detach(), {slopes.const_data_ptr<double>(), 15}, kStarts, got);
  EXPECT_TRUE(at::allclose(got - before, want, 1e-12, 1e-14));
  EXPECT_TRUE(at::equal(got[3], before[3]));
}

TEST(Balance, TensorsOfOtherTypesAreRefused) {
  const at::Tensor scores = at::zeros({2, 3}), ids = at::zeros({2, 1}, at::kLong);
  const std::vector<int64_t> cu{0, 2};
  EXPECT_TRUE(invalid_of([&] {
                choice_sums(scores, ids, cu);
              }).starts_with("kernels: the chosen experts' tensor is Long [2, 1] on cpu"));
  EXPECT_TRUE(invalid_of([&] {
                choice_sums(scores.to(at::kBFloat16), ids, cu);
              }).starts_with("kernels: the router's scores is BFloat16 [2, 3] on cpu"));
}

}  // namespace
}  // namespace twinkle::kernels
