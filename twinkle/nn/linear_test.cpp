#include "twinkle/nn/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

// Adds 2 x[:, :1] to every column of sequences whose slot is not -1.
struct Doubler : Delta {
  std::vector<at::Tensor> forward(const at::Tensor& x, const Rows& rows, at::Tensor& y) override {
    for (int64_t s = 0; s < rows.num_segments(); ++s) {
      const int64_t a = rows.cu_seqlens[s], b = rows.cu_seqlens[s + 1];
      if (rows.segments[s].slot >= 0) y.slice(0, a, b) += 2 * x.slice(0, a, b).narrow(1, 0, 1);
    }
    return {x};
  }
  void backward(const at::Tensor& dy, const at::Tensor&, const std::vector<at::Tensor>& saved,
                const Rows& rows, at::Tensor& dx) override {
    EXPECT_EQ(saved.size(), 1u);
    for (int64_t s = 0; s < rows.num_segments(); ++s) {
      const int64_t a = rows.cu_seqlens[s], b = rows.cu_seqlens[s + 1];
      if (rows.segments[s].slot >= 0)
        dx.slice(0, a, b).select(1, 0) += 2 * dy.slice(0, a, b).sum(1);
    }
  }
};

TEST(Linear, GivesDeltaAndWeightGradientsThatEqualPlainAutograd) {
  at::manual_seed(1);
  const Rows rows = rows_of({3, 4}, {-1, 0}, {0, 0}, {1, 1});
  Doubler doubler;
  WeightGrad dw, db;
  Linear w{at::randn({5, 6}, at::kDouble), at::randn({5}, at::kDouble), &dw, &db, &doubler};
  auto x = at::randn({7, 6}, at::kDouble).requires_grad_(true), g = at::randn({7, 5}, at::kDouble);
  const auto dx = torch::autograd::grad({linear(x, w, rows)}, {x}, {g})[0];

  auto x2 = x.detach().requires_grad_(true), w2 = w.weight.clone().requires_grad_(true),
       b2 = w.bias.clone().requires_grad_(true);
  auto mask = at::zeros({7, 1}, at::kDouble);
  mask.slice(0, 3, 7).fill_(2);
  const auto y2 = at::linear(x2, w2, b2) + mask * x2.narrow(1, 0, 1);
  const auto want = torch::autograd::grad({y2}, {x2, w2, b2}, {g});
  EXPECT_TRUE(at::allclose(dx, want[0], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(dw.sum, want[1], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(db.sum, want[2], 1e-10, 1e-12));
}

TEST(Linear, HasTheGradientsOfFiniteDifferences) {
  at::manual_seed(2);
  const Rows rows = rows_of({3, 4}, {-1, 0}, {0, 0}, {1, 1});
  Doubler doubler;
  WeightGrad dw, db;
  Linear w{at::randn({5, 6}, at::kDouble), at::randn({5}, at::kDouble), &dw, &db, &doubler};
  const at::Tensor x = kernels::leaf({7, 6}), by = at::randn({7, 5}, at::kDouble);
  const auto value = [&] { return (linear(x, w, rows) * by).sum(); };
  const auto dx = torch::autograd::grad({value()}, {x})[0];
  const auto near = [&](const at::Tensor& ours, const at::Tensor& of) {
    EXPECT_LT((ours - kernels::finite_difference(value, of)).abs().max().item<double>(), 1e-7);
  };
  near(dx, x.detach());
  near(dw.sum, w.weight);
  near(db.sum, w.bias);
}

TEST(Linear, AddsNoGradientForSequencesThatDoNotLearn) {
  const Rows rows = rows_of({2, 2}, {-1, -1}, {0, 0}, {0, 1});
  WeightGrad dw;
  const Linear w{at::ones({1, 1}), {}, &dw, nullptr, nullptr};
  auto x = at::ones({4, 1}).requires_grad_(true);
  torch::autograd::grad({linear(x, w, rows)}, {x}, {at::ones({4, 1})});
  EXPECT_EQ(dw.sum.item<float>(), 2.0f);
}

// As one whose loss turns out not to be finite: nothing of it may reach a sum.
TEST(Linear, ASequenceThatDoesNotLearnAfterAllAddsNothing) {
  WeightGrad dw;
  Rows rows = rows_of({2, 2}, {-1, -1}, {0, 0}, {1, 1});
  auto x = at::ones({4, 1});
  x[0][0] = NAN;
  x.requires_grad_(true);
  const at::Tensor y = linear(x, Linear{at::ones({1, 1}), {}, &dw, nullptr, nullptr}, rows);
  rows.segments[0].learn.end();
  torch::autograd::grad({y}, {x}, {at::ones({4, 1})});
  EXPECT_EQ(dw.sum.item<float>(), 2.0f);
}

TEST(Linear, ItsRowsMayBeGoneBeforeTheBackwardPass) {
  WeightGrad dw;
  Rows rows = rows_of({2, 2}, {-1, -1}, {0, 0}, {0, 1});
  auto x = at::ones({4, 1}).requires_grad_(true);
  const at::Tensor y = linear(x, Linear{at::ones({1, 1}), {}, &dw, nullptr, nullptr}, rows);
  rows = rows_of({4}, {-1}, {0}, {1});
  torch::autograd::grad({y}, {x}, {at::ones({4, 1})});
  EXPECT_EQ(dw.sum.item<float>(), 2.0f);
}

TEST(Linear, ThatIsNotExactGivesThePlainProduct) {
  at::manual_seed(4);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}}) {
    const Linear w{.weight = at::randn({24, 48}).to(type), .exact = false};
    for (const int64_t rows : {1, 3, 20}) {
      const auto x = at::randn({rows, 48}).to(type);
      EXPECT_TRUE(at::allclose(product(x, w), at::linear(x, w.weight), tolerance, tolerance));
      const auto dy = at::randn({rows, 24}).to(type);
      EXPECT_TRUE(at::allclose(transposed_product(dy, w.weight, false),
                               at::linear(dy, w.weight.t()), tolerance, tolerance));
    }
  }
}

}  // namespace
}  // namespace twinkle::nn
