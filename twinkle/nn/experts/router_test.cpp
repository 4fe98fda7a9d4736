#include "twinkle/nn/experts/router.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

using kernels::RouteScore;

const kernels::RouteOptions kNormed{
    .score = RouteScore::kSigmoid, .top_k = 2, .normalise = true, .norm_eps = 1e-20, .scale = 2.5};
const kernels::RouteOptions kPlain{.top_k = 3};

class RouterTest : public testing::Test {
 protected:
  RouterTest() { at::manual_seed(1); }
  // The library's float64 products would have to be tried first, for seconds.
  static constexpr bool kExact = false;
  const Rows rows_ = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});
};

TEST_F(RouterTest, gradients_equal_finite_differences) {
  for (const auto& options : {kNormed, kPlain}) {
    const at::Tensor x = kernels::leaf({5, 7});
    const Router router{
        .weight = at::randn({6, 7}, at::kDouble), .options = options, .exact = kExact};
    kernels::expect_gradients([&] { return route(x, router, rows_).weights; }, {x});
  }
}

TEST_F(RouterTest, weights_and_the_gradient_of_a_learning_router_equal_plain_autograds) {
  for (const auto& options : {kNormed, kPlain}) {
    const at::Tensor x = kernels::leaf({5, 7}), w = kernels::leaf({6, 7});
    WeightGrad sum;
    const Router router{
        .weight = w.detach(), .weight_grad = &sum, .options = options, .exact = kExact};
    const Routes routes = route(x, router, rows_);
    const at::Tensor logits = x.matmul(w.t());
    const at::Tensor scores =
        options.score == RouteScore::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
    at::Tensor want = scores.gather(1, routes.ids.to(at::kLong));
    if (options.normalise) want = want / want.sum(-1, true);
    want = want * options.scale;
    EXPECT_TRUE(at::allclose(routes.weights, want, 1e-12, 1e-14));
    const at::Tensor g = at::randn(want.sizes(), at::kDouble);
    const auto slopes = torch::autograd::grad({want}, {x, w}, {g});
    routes.weights.backward(g);
    EXPECT_TRUE(at::allclose(x.grad(), slopes[0], 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(sum.sum, slopes[1], 1e-10, 1e-12));
  }
}

TEST_F(RouterTest, experts_that_are_given_take_the_place_of_its_choice_with_its_own_scores) {
  for (const auto& options : {kNormed, kPlain}) {
    const at::Tensor x = kernels::leaf({5, 7});
    const Router router{
        .weight = at::randn({6, 7}, at::kDouble), .options = options, .exact = kExact};
    const auto routing = std::make_shared<Routing>();
    routing->keeps = true;
    const at::Tensor given = at::full({5, options.top_k}, -1, at::kInt);
    for (const int64_t row : {0, 3}) given[row].copy_(at::arange(6 - options.top_k, 6));
    routing->given[2] = given;
    at::Tensor ids = route(x, router, rows_, {routing, 1}).ids;  // another layer's
    EXPECT_TRUE(at::equal(ids, route(x, router, rows_).ids));
    EXPECT_TRUE(at::equal(routing->chosen.at(1), ids));
    ids = at::where(given >= 0, given, ids);
    const Routes routes = route(x, router, rows_, {routing, 2});
    EXPECT_TRUE(at::equal(routes.ids, ids));
    EXPECT_TRUE(at::equal(routing->chosen.at(2), ids));
    const at::Tensor logits = x.matmul(router.weight.t());
    const at::Tensor scores =
        options.score == RouteScore::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
    at::Tensor want = scores.gather(1, ids.to(at::kLong));
    if (options.normalise) want = want / want.sum(-1, true);
    want = want * options.scale;
    EXPECT_TRUE(at::allclose(routes.weights, want, 1e-12, 1e-14));
    const at::Tensor g = at::randn(want.sizes(), at::kDouble);
    EXPECT_TRUE(at::allclose(torch::autograd::grad({routes.weights}, {x}, {g})[0],
                             torch::autograd::grad({want}, {x}, {g})[0], 1e-10, 1e-12));
  }
}

TEST_F(RouterTest, experts_that_are_given_far_below_its_choice_share_as_their_logits_say) {
  const at::Tensor x = at::ones({1, 2}).requires_grad_();
  WeightGrad sum;
  const Router router{
      .weight = at::tensor({0.0f, 0.0f, -90.0f, -60.0f, -100.0f, -51.0f}).view({3, 2}),
      .weight_grad = &sum,
      .options = {.top_k = 2, .normalise = true}};
  const auto routing = std::make_shared<Routing>();
  routing->given[0] = at::tensor({1, 2}, at::kInt).view({1, 2});
  const Routes routes = route(x, router, rows_of({1}, {-1}, {0}, {1}), {routing, 0});
  const at::Tensor want = at::tensor({-150.0f, -151.0f}).softmax(0).unsqueeze(0);
  EXPECT_TRUE(at::allclose(routes.weights, want, 1e-5, 1e-6)) << routes.weights;
  routes.weights.backward(at::tensor({1.0f, 0.0f}).unsqueeze(0));
  const float slope = (want[0][0] * want[0][1]).item<float>();
  EXPECT_TRUE(at::allclose(x.grad(), at::tensor({10.0f, -9.0f}).unsqueeze(0) * slope, 1e-4, 1e-6));
  const at::Tensor of_weight = at::tensor({0.0f, 0.0f, slope, slope, -slope, -slope}).view({3, 2});
  EXPECT_TRUE(at::allclose(sum.sum, of_weight, 1e-4, 1e-6)) << sum.sum;
}

TEST_F(RouterTest, only_learning_sequences_add_to_its_gradient) {
  const Rows rows = rows_of({2, 3}, {-1, -1}, {0, 0}, {0, 1});
  const at::Tensor x = at::randn({5, 7}), w = at::randn({6, 7}), g = at::randn({5, 3});
  const auto sum_of = [&](const at::Tensor& in, const Rows& of, const at::Tensor& grad) {
    WeightGrad sum;
    const at::Tensor leaf = in.clone().requires_grad_();
    route(leaf, {.weight = w, .weight_grad = &sum, .options = kPlain}, of).weights.backward(grad);
    return sum.sum;
  };
  EXPECT_TRUE(at::equal(sum_of(x, rows, g), sum_of(x.narrow(0, 2, 3), rows_of({3}, {-1}, {0}, {1}),
                                                   g.narrow(0, 2, 3))));
}

TEST_F(RouterTest, bfloat16_rows_are_routed_by_float32_logits) {
  const at::Tensor x = at::randn({200, 64}).to(at::kBFloat16),
                   w = at::randn({60, 64}).to(at::kBFloat16);
  const Router router{.weight = w, .options = {.top_k = 4, .normalise = true}};
  const Routes routes = route(x, router, pack(std::vector<int64_t>{200}));
  EXPECT_EQ(routes.weights.scalar_type(), at::kFloat);
  const at::Tensor scores = at::softmax(x.to(at::kDouble).matmul(w.to(at::kDouble).t()), -1);
  const auto [top, ids] = scores.topk(4, -1);
  const at::Tensor order = ids.argsort(int64_t{-1}, false);
  EXPECT_TRUE(at::equal(routes.ids.to(at::kLong), ids.gather(1, order)));
  EXPECT_TRUE(at::allclose(routes.weights.to(at::kDouble),
                           (top / top.sum(-1, true)).gather(1, order), 1e-4, 1e-6));
}

TEST_F(RouterTest, a_row_goes_the_same_way_in_any_company) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({70, 48}).to(type), w = at::randn({10, 48}).to(type);
    const Router router{.weight = w, .correction = at::randn({10}) * 0.1, .options = kNormed};
    const at::NoGradGuard no_grad;
    const Routes all = route(x, router, pack(std::vector<int64_t>{70}));
    for (const int64_t t : {0, 41, 69}) {
      const Routes one = route(x.narrow(0, t, 1), router, pack(std::vector<int64_t>{1}));
      EXPECT_TRUE(at::equal(one.ids, all.ids.narrow(0, t, 1)));
      EXPECT_TRUE(at::equal(one.weights, all.weights.narrow(0, t, 1)));
    }
  }
}

}  // namespace
}  // namespace twinkle::nn
