#include "twinkle/kernels/experts/far_route.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace twinkle::kernels {
namespace {

const at::Tensor kIds = at::tensor({1, 3, 6}, at::kInt).expand({4, 3}).contiguous();

RouteOptions options_of(RouteScore score) {
  return {.score = score, .top_k = 3, .normalise = true, .scale = 2.5};
}

// Of 8 experts, those of kIds this far below the others.
at::Tensor some_logits(const std::vector<float>& far) {
  at::manual_seed(6);
  return at::randn({4, 8}) -
         at::tensor(far).unsqueeze(1) * at::one_hot(kIds.to(at::kLong), 8).sum(1);
}

// In float64 no such score is 0.
TEST(FarRoute, WhereScoresAreTooSmallForTheirTypeWeightsAndGradientsAreThoseOfALargerOne) {
  for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid}) {
    const RouteOptions o = options_of(score);
    const at::Tensor logits = some_logits({0, 60, 110, 250});
    const at::Tensor wide = logits.to(at::kDouble).requires_grad_();
    const at::Tensor all = score == RouteScore::kSoftmax ? wide.softmax(-1) : wide.sigmoid();
    const at::Tensor mine = all.gather(1, kIds.to(at::kLong)),
                     want = mine / mine.sum(-1, true) * o.scale;
    const Routed routed{route_scores(logits, score), kIds};
    const at::Tensor weights = far_route_weights(logits, routed, o);
    EXPECT_TRUE(at::allclose(weights.to(at::kDouble), want, 1e-5, 1e-6)) << weights << want;
    const at::Tensor grad = at::randn({4, 3});
    want.backward(grad.to(at::kDouble));
    const at::Tensor slope = far_route_backward(grad, weights, routed, o);
    EXPECT_TRUE(at::allclose(slope.to(at::kDouble), wide.grad(), 1e-4, 1e-5))
        << slope << wide.grad();
  }
}

TEST(FarRoute, ElsewhereAllBitsAreThoseOfARoute) {
  const at::Tensor logits = some_logits({0, 5, 20, 40}), grad = at::randn({4, 3});
  for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid}) {
    for (const bool normalise : {false, true}) {
      RouteOptions o = options_of(score);
      o.normalise = normalise;
      const Routed routed{route_scores(logits, score), kIds};
      const at::Tensor weights = route_weights(routed.scores, kIds, o);
      EXPECT_TRUE(at::equal(far_route_weights(logits, routed, o), weights));
      EXPECT_TRUE(at::equal(far_route_backward(grad, weights, routed, o),
                            route_backward(grad, routed.scores, kIds, o)));
    }
  }
}

// Divided by a constant besides, the weights are 0.
TEST(FarRoute, AnEpsilonKeepsItsMeaning) {
  RouteOptions o = options_of(RouteScore::kSigmoid);
  o.norm_eps = 1e-20;
  const at::Tensor logits = some_logits({250, 250, 250, 250});
  const Routed routed{route_scores(logits, o.score), kIds};
  const at::Tensor weights = far_route_weights(logits, routed, o);
  EXPECT_TRUE(at::equal(weights, at::zeros({4, 3})));
  EXPECT_TRUE(
      at::equal(far_route_backward(at::ones({4, 3}), weights, routed, o), at::zeros({4, 8})));
}

}  // namespace
}  // namespace twinkle::kernels
