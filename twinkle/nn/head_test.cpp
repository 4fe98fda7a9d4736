#include "twinkle/nn/head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace twinkle::nn {
namespace {

struct Problem {
  Packing packing = pack(std::vector<int64_t>{4, 5, 3});
  Owners owners{{-1, -1, -1}, {0, 0, 0}, {1, 1, 1}};
  at::Tensor hidden = at::randn({12, 8}, at::kDouble), weight = at::randn({50, 8}, at::kDouble);
  Targets targets{{0, 1, 3, 4, 5, 8, 10, 11}, {3, 0, 49, 7, 7, 21, 30, 2}, {}};
  std::vector<double> grad{1, -2, 0.5, 3, 1, 1, -1, 2};
};

TEST(Head, ForwardAndBackwardInOnePassEqualPlainAutograd) {
  at::manual_seed(5);
  for (const float t : {1.0f, 0.7f}) {
    Problem p;
    if (t != 1) p.targets.temperature.assign(8, t);
    WeightGrad dw;
    const Linear head{p.weight, {}, &dw, nullptr, nullptr};
    const auto out =
        head_backward(p.hidden, head, p.targets,
                      [&](int64_t first, std::span<const float> logprobs, std::span<float> grad) {
                        for (size_t i = 0; i < logprobs.size(); ++i)
                          grad[i] = static_cast<float>(p.grad[first + i]);
                      },
                      p.packing, p.owners, {.entropy = true, .chunk = 2});

    auto h = p.hidden.clone().requires_grad_(true), w = p.weight.clone().requires_grad_(true);
    const auto rows = at::tensor(at::ArrayRef<int64_t>(p.targets.rows));
    const auto ids = at::tensor(at::ArrayRef<int32_t>(p.targets.ids)).to(at::kLong);
    const auto logp = at::log_softmax(at::linear(h.index_select(0, rows), w) / t, 1);
    const auto picked = logp.gather(1, ids.unsqueeze(1)).squeeze(1);
    const auto want = torch::autograd::grad(
        {picked}, {h, w}, {at::tensor(at::ArrayRef<double>(p.grad), at::kDouble)});
    const auto forward =
        head_forward(p.hidden, Linear{p.weight}, p.targets, {.entropy = true, .chunk = 3});
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(out.logprobs[i], picked[i].item<double>(), 1e-5);
      EXPECT_EQ(out.logprobs[i], forward.logprobs[i]);
      EXPECT_NEAR(forward.entropies[i], -(logp[i].exp() * logp[i]).sum().item<double>(), 1e-5);
    }
    EXPECT_TRUE(at::allclose(out.dhidden, want[0], 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(dw.sum, want[1], 1e-5, 1e-6));
  }
}

TEST(Head, RowsWithoutATargetGetNoGradient) {
  Problem p;
  const auto out = head_backward(
      p.hidden, {p.weight}, p.targets,
      [](int64_t, std::span<const float>, std::span<float> grad) {
        std::fill(grad.begin(), grad.end(), 1.0f);
      },
      p.packing, p.owners);
  for (const int64_t row : {2, 6, 7, 9}) EXPECT_EQ(out.dhidden[row].abs().max().item<double>(), 0);
}

TEST(Head, NeverHoldsMoreLogitsThanAChunk) {
  // With a chunk of one row every row is its own product: the bits must not change in bf16.
  at::manual_seed(6);
  Problem p;
  const auto hidden = at::randn({12, 64}).to(at::kBFloat16),
             weight = at::randn({500, 64}).to(at::kBFloat16);
  const auto one = head_forward(hidden, Linear{weight}, p.targets, {.chunk = 1});
  const auto all = head_forward(hidden, Linear{weight}, p.targets, {.chunk = 512});
  EXPECT_EQ(one.logprobs, all.logprobs);
}

TEST(Head, TakesAsManyRowsAtATimeAsTheLogitsMemoryHolds) {
  Problem p;
  const int64_t vocab = kLogitBytes / 4;  // two rows in bf16
  const auto hidden = at::ones({12, 1}, at::kBFloat16),
             weight = at::ones({vocab, 1}, at::kBFloat16);
  std::vector<size_t> sizes;
  const auto note = [&](int64_t, std::span<const float> logprobs, std::span<float> grad) {
    sizes.push_back(logprobs.size());
    std::fill(grad.begin(), grad.end(), 0.0f);
  };
  head_backward(hidden, {weight}, p.targets, note, p.packing, p.owners);
  EXPECT_EQ(sizes, std::vector<size_t>(4, 2));
}

}  // namespace
}  // namespace twinkle::nn
