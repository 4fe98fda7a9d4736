#include "twinkle/kernels/experts/far_route.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace twinkle::kernels {
namespace {

at::Tensor far_ids(int64_t rows) {
  return at::tensor({1, 3, 6}, at::kInt).expand({rows, 3}).contiguous();
}

RouteOptions options_of(RouteScore score) {
  return {.score = score, .top_k = 3, .normalise = true, .scale = 2.5};
}

// Logits of 8 experts, those of some_ids() this far below the others.
at::Tensor some_logits(const std::vector<double>& far) {
  at::manual_seed(6);
  const at::Tensor of_row = at::tensor(far, at::kDouble).unsqueeze(1),
                   chosen = at::one_hot(far_ids(of_row.size(0)).to(at::kLong), 8).sum(1);
  return at::randn({of_row.size(0), 8}, at::kDouble) - of_row * chosen;
}

// The weights are the softmax of the experts' own logits, but for a sigmoid's near 1.
void expect_those_of_logits(const at::Tensor& logits, RouteScore score, double near) {
  const RouteOptions o = options_of(score);
  const at::Tensor ids = far_ids(logits.size(0)), wide = logits.to(at::kDouble).requires_grad_();
  const at::Tensor of_chosen = wide.gather(1, ids.to(at::kLong));
  const at::Tensor mine =
      score == RouteScore::kSigmoid ? of_chosen - at::softplus(of_chosen) : of_chosen;
  const at::Tensor want = mine.softmax(-1) * o.scale;
  const Routed routed{route_scores(logits, score), ids};
  const at::Tensor weights = far_route_weights(logits, routed, o);
  EXPECT_TRUE(at::allclose(weights.to(at::kDouble), want, near, near / 10)) << weights << want;
  const at::Tensor grad = at::randn(ids.sizes(), logits.options());
  want.backward(grad.to(at::kDouble));
  const at::Tensor slope = far_route_backward(grad, weights, routed, o);
  EXPECT_TRUE(at::allclose(slope.to(at::kDouble), wide.grad(), 10 * near, near))
      << slope << wide.grad();
}

TEST(FarRoute, WhereScoresAreTooSmallForTheirTypeWeightsAndGradientsAreThoseOfALargerOne) {
  std::vector<double> gaps, wide_gaps;
  for (double gap = 0; gap <= 130; ++gap) gaps.push_back(gap);
  for (double gap = 0; gap <= 900; gap += 3) wide_gaps.push_back(gap);
  for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid}) {
    expect_those_of_logits(some_logits(gaps).to(at::kFloat), score, 1e-5);
    expect_those_of_logits(some_logits(wide_gaps), score, 1e-12);
  }
}

TEST(FarRoute, ElsewhereAllBitsAreThoseOfARoute) {
  const at::Tensor logits = some_logits({0, 5, 20, 40, 60}).to(at::kFloat), ids = far_ids(5),
                   grad = at::randn({5, 3});
  for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid}) {
    for (const bool normalise : {false, true}) {
      RouteOptions o = options_of(score);
      o.normalise = normalise;
      const Routed routed{route_scores(logits, score), ids};
      const at::Tensor weights = route_weights(routed.scores, ids, o);
      EXPECT_TRUE(at::equal(far_route_weights(logits, routed, o), weights));
      EXPECT_TRUE(at::equal(far_route_backward(grad, weights, routed, o),
                            route_backward(grad, routed.scores, ids, o)));
    }
  }
}

// Divided by a constant besides, the weights are 0.
TEST(FarRoute, AnEpsilonKeepsItsMeaning) {
  RouteOptions o = options_of(RouteScore::kSigmoid);
  o.norm_eps = 1e-20;
  const at::Tensor logits = some_logits({250, 250, 250, 250}).to(at::kFloat);
  const Routed routed{route_scores(logits, o.score), far_ids(4)};
  const at::Tensor weights = far_route_weights(logits, routed, o);
  EXPECT_TRUE(at::equal(weights, at::zeros({4, 3})));
  EXPECT_TRUE(
      at::equal(far_route_backward(at::ones({4, 3}), weights, routed, o), at::zeros({4, 8})));
}

}  // namespace
}  // namespace twinkle::kernels
