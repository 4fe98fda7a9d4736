#include "twinkle/kernels/experts/route.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::kernels {
namespace {

using Ids = std::vector<int32_t>;

Ids chosen(const std::vector<float>& scores, const RouteOptions& options,
           const at::Tensor& correction = {}) {
  const at::Tensor row = at::tensor(scores).unsqueeze(0);
  const at::Tensor ids = route_top_k(row, correction, options);
  const int32_t* id = ids.const_data_ptr<int32_t>();
  return {id, id + ids.numel()};
}

// The weights by torch, where no two scores are equal; scores [T, E] float64.
at::Tensor weights_by_torch(const at::Tensor& logits, const at::Tensor& correction,
                            const RouteOptions& o) {
  const at::Tensor scores =
      o.score == RouteScore::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  at::Tensor choice = correction.defined() ? scores + correction : scores;
  if (o.groups > 1) {
    const at::Tensor by = choice.view({logits.size(0), o.groups, -1});
    const at::Tensor worth = o.group_by_two ? std::get<0>(by.topk(2, -1)).sum(-1) : by.amax(-1);
    const at::Tensor kept = std::get<1>(worth.topk(o.top_groups, -1));
    const at::Tensor mask = at::ones_like(worth, at::kBool).scatter(1, kept, false).unsqueeze(-1);
    const double out = o.group_by_two ? -std::numeric_limits<double>::infinity() : 0;
    choice = by.masked_fill(mask, out).flatten(1);
  }
  const at::Tensor ids = std::get<0>(std::get<1>(choice.topk(o.top_k, -1)).sort(-1));
  at::Tensor weights = scores.gather(1, ids);
  if (o.normalise) weights = weights / (weights.sum(-1, true) + o.norm_eps);
  return weights * o.scale;
}

std::vector<RouteOptions> kinds() {
  using enum RouteScore;
  return {{.score = kSoftmax, .top_k = 3},
          {.score = kSoftmax, .top_k = 3, .normalise = true},
          {.score = kSoftmax, .top_k = 3, .groups = 4, .top_groups = 2, .scale = 16},
          {.score = kSigmoid, .top_k = 3, .normalise = true, .norm_eps = 1e-20, .scale = 2.5},
          {.score = kSigmoid,
           .top_k = 3,
           .groups = 4,
           .top_groups = 2,
           .group_by_two = true,
           .normalise = true,
           .norm_eps = 1e-20,
           .scale = 2.5},
          {.score = kSigmoid, .top_k = 8}};
}

at::Tensor correction_of(const RouteOptions& o) {
  return o.score == RouteScore::kSigmoid ? at::randn({8}, at::kDouble) * 0.3 : at::Tensor();
}

TEST(Route, WeightsAndTheirGradientAreTorchsForEveryKind) {
  at::manual_seed(3);
  for (const RouteOptions& o : kinds()) {
    const at::Tensor logits = at::randn({40, 8}, at::kDouble).requires_grad_();
    const at::Tensor correction = correction_of(o), want = weights_by_torch(logits, correction, o);
    const at::Tensor scores = route_scores(logits.detach(), o.score);
    const at::Tensor ids = route_top_k(scores, correction, o);
    EXPECT_TRUE(at::allclose(route_weights(scores, ids, o), want, 1e-12, 1e-14)) << o.top_k;
    const at::Tensor grad = at::randn({40, o.top_k}, at::kDouble);
    want.backward(grad);
    EXPECT_TRUE(at::allclose(route_backward(grad, scores, ids, o), logits.grad(), 1e-11, 1e-13));
    const at::Tensor narrow = route_scores(logits.detach().to(at::kFloat), o.score);
    EXPECT_TRUE(at::allclose(narrow.to(at::kDouble), scores, 1e-5, 1e-7));
    EXPECT_TRUE(at::allclose(route_weights(narrow, ids, o).to(at::kDouble), want, 1e-5, 1e-6));
  }
}

TEST(Route, TheGradientEqualsFiniteDifferences) {
  at::manual_seed(4);
  for (const RouteOptions& o : kinds()) {
    const at::Tensor logits = at::randn({3, 8}, at::kDouble),
                     grad = at::randn({3, o.top_k}, at::kDouble);
    const at::Tensor scores = route_scores(logits, o.score), ids = route_top_k(scores, {}, o);
    const at::Tensor slope = finite_difference(
        [&] { return (route_weights(route_scores(logits, o.score), ids, o) * grad).sum(); },
        logits);
    EXPECT_TRUE(at::allclose(route_backward(grad, scores, ids, o), slope, 1e-6, 1e-7));
  }
}

TEST(Route, OfEqualScoresTheSmallerIdsAreChosen) {
  const std::vector<float> scores{1, 2, 1, 3, 1, 3, 1, 3};
  EXPECT_EQ(chosen(scores, {.top_k = 2}), (Ids{3, 5}));
  EXPECT_EQ(chosen(scores, {.top_k = 4}), (Ids{1, 3, 5, 7}));
  EXPECT_EQ(chosen(scores, {.top_k = 5}), (Ids{0, 1, 3, 5, 7}));
  EXPECT_EQ(chosen(scores, {.top_k = 6}), (Ids{0, 1, 2, 3, 5, 7}));
  EXPECT_EQ(chosen(std::vector<float>(60, 0), {.top_k = 4}), (Ids{0, 1, 2, 3}));
}

TEST(Route, OfEqualGroupsTheFirstAreChosen) {
  const std::vector<float> scores{1, 5, 4, 2, 5, 1, 5, 0};
  EXPECT_EQ(chosen(scores, {.top_k = 2, .groups = 4, .top_groups = 1}), (Ids{0, 1}));
  EXPECT_EQ(chosen(scores, {.top_k = 2, .groups = 4, .top_groups = 2}), (Ids{1, 4}));
  const RouteOptions by_two{.top_k = 2, .groups = 4, .top_groups = 1, .group_by_two = true};
  EXPECT_EQ(chosen(scores, by_two), (Ids{0, 1}));  // 6, 6, 6, 5
}

TEST(Route, OfOtherGroupsNoneIsChosenWhateverTheScoresOfTheChosenOnes) {
  // Those of the second, which holds the largest, are 0 in their type, as what a dropped group has
  // may be, whose ids are smaller.
  const at::Tensor scores = route_scores(
      at::tensor({-1.0f, -1.0f, -1.0f, -1.0f, -200.0f, -200.0f, 0.0f, -200.0f}).unsqueeze(0),
      RouteScore::kSoftmax);
  for (const bool by_two : {false, true}) {
    const RouteOptions o{.top_k = 3, .groups = 2, .top_groups = 1, .group_by_two = by_two};
    const at::Tensor ids = route_top_k(scores, {}, o);
    const int32_t* const first = ids.const_data_ptr<int32_t>();
    EXPECT_EQ(Ids(first, first + 3), (Ids{4, 5, 6}));
    EXPECT_EQ(route_weights(scores, ids, o).eq(0).sum().item<int64_t>(), 2);
  }
  const std::vector<float> negative{3, -1, -1, 0.5, 2, -1, -1, 0.5};
  EXPECT_EQ(chosen(negative, {.top_k = 3, .groups = 2, .top_groups = 1}), (Ids{0, 1, 3}));
}

TEST(Route, ACorrectionCountsForTheChoiceAndNotForTheWeights) {
  const at::Tensor correction = at::tensor({0.0f, 9.0f, 0.0f, 0.0f});
  const at::Tensor scores = at::tensor({0.4f, 0.1f, 0.3f, 0.2f}).unsqueeze(0);
  const RouteOptions o{.top_k = 2};
  const at::Tensor ids = route_top_k(scores, correction, o);
  EXPECT_TRUE(at::equal(ids, at::tensor({0, 1}, at::kInt).unsqueeze(0)));
  EXPECT_TRUE(at::equal(route_weights(scores, ids, o), at::tensor({0.4f, 0.1f}).unsqueeze(0)));
}

TEST(Route, ARowHasItsBitsInAnyCompany) {
  at::manual_seed(5);
  for (const RouteOptions& o : kinds()) {
    const at::Tensor logits = at::randn({700, 8});
    const at::Tensor scores = route_scores(logits, o.score), ids = route_top_k(scores, {}, o);
    const at::Tensor weights = route_weights(scores, ids, o);
    for (const int64_t t : {0, 1, 333, 699}) {
      const at::Tensor alone = route_scores(logits.narrow(0, t, 1).contiguous(), o.score);
      EXPECT_TRUE(at::equal(route_top_k(alone, {}, o), ids.narrow(0, t, 1)));
      EXPECT_TRUE(at::equal(route_weights(alone, ids.narrow(0, t, 1), o), weights.narrow(0, t, 1)));
    }
  }
}

TEST(Route, ARowWithNaNHasNaNWeightsAndNoOtherRowDoes) {
  const at::Tensor scores = at::rand({5, 4});
  const RouteOptions o{.top_k = 2, .normalise = true};
  const at::Tensor want = route_top_k(scores, {}, o);
  scores[3][2] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor ids = route_top_k(scores, {}, o);
  EXPECT_TRUE(at::equal(ids[3], at::tensor({0, 2}, at::kInt)));
  const at::Tensor is_nan = at::isnan(route_weights(scores, ids, o)).any(1);
  for (int64_t t = 0; t < 5; ++t) {
    EXPECT_EQ(is_nan[t].item<bool>(), t == 3);
    if (t != 3) {
      EXPECT_TRUE(at::equal(ids[t], want[t]));
    }
  }
}

TEST(Route, ImpossibleChoicesAreRefused) {
  const auto error = [](const RouteOptions& o) { return error_of([&] { check_route(o, 6); }); };
  EXPECT_EQ(error({.top_k = 7}),
            "kernels: 7 experts a token, it must be from 1 to the number of experts, 6");
  EXPECT_EQ(error({.groups = 4}),
            "kernels: 4 groups of experts, they must divide the number of experts, 6");
  EXPECT_EQ(error({.groups = 3, .top_groups = 4}),
            "kernels: 4 chosen groups of experts, it must be from 1 to the number of groups, 3");
  EXPECT_EQ(error({.top_k = 3, .groups = 3}),
            "kernels: 3 experts a token, the 1 chosen groups have 2");
  EXPECT_EQ(error({.groups = 6, .group_by_two = true}),
            "kernels: groups of 1 expert, which are worth the sum of 2");
  EXPECT_EQ(error_of([] { route_scores(at::zeros({2, 2}, at::kBFloat16), RouteScore::kSoftmax); }),
            "kernels: the router's logits is BFloat16 [2, 2] on cpu, it must be contiguous, with 2 "
            "dims, of Float and on the CPU: experts run there alone");
}

}  // namespace
}  // namespace twinkle::kernels
