#include "twinkle/nn/experts/balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "twinkle/nn/experts/router.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

constexpr int64_t kBalanceExperts = 6, kTopK = 2, kBalanceWidth = 8;
constexpr size_t kLayers[] = {1, 3, 4};  // the others have no experts

// The loss of one sequence by torch: probabilities [T, E] and ids [T, k] of each layer.
at::Tensor balance_by_torch(AuxLoss form, const std::vector<at::Tensor>& p,
                            const std::vector<at::Tensor>& ids) {
  const auto product = [](const at::Tensor& probabilities, const at::Tensor& chosen) {
    const at::Tensor hot = at::one_hot(chosen.to(at::kLong), kBalanceExperts).to(at::kDouble);
    return (hot.sum(1).mean(0) * probabilities.mean(0)).sum() *
           static_cast<double>(kBalanceExperts);
  };
  if (form == AuxLoss::kAllLayers) return product(at::cat(p), at::cat(ids));
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (size_t l = 0; l < p.size(); ++l)
    sum = sum + product(p[l], ids[l]) / static_cast<double>(kTopK);
  return sum;
}

// Routers of a few layers, and inputs of theirs.
struct Layers {
  Layers(const Rows& of, at::ScalarType type, AuxLoss form) : rows(of) {
    for (size_t i = 0; i < std::size(kLayers); ++i) {
      x.push_back(at::randn({rows.num_tokens(), kBalanceWidth}, type).requires_grad_());
      w.push_back(at::randn({kBalanceExperts, kBalanceWidth}, type).requires_grad_());
      g.push_back(at::randn({rows.num_tokens(), kTopK}, type));
      routers.push_back({.weight = w[i].detach(),
                         .options = {.top_k = kTopK},
                         .exact = type == at::kFloat,  // others would be tried first, for seconds
                         .aux_loss = form});
    }
    sums.resize(routers.size());
    for (size_t i = 0; i < sums.size(); ++i) routers[i].weight_grad = &sums[i];
  }
  std::vector<Routes> forward(const std::shared_ptr<Routing>& routing) const {
    std::vector<Routes> out;
    for (size_t i = 0; i < routers.size(); ++i)
      out.push_back(route(x[i], routers[i], rows, {routing, kLayers[i]}));
    return out;
  }
  // d / d x of the weights times g, and what the balance adds.
  std::vector<at::Tensor> gradients(const std::shared_ptr<Routing>& routing) const {
    const std::vector<Routes> routes = forward(routing);
    std::vector<at::Tensor> out;
    for (size_t i = routes.size(); i > 0; --i)  // as the decoder
      out.insert(out.begin(),
                 torch::autograd::grad({routes[i - 1].weights}, {x[i - 1]}, {g[i - 1]})[0]);
    return out;
  }

  Rows rows;
  std::vector<at::Tensor> x, w, g;
  std::vector<WeightGrad> sums;
  std::vector<Router> routers;
};

std::shared_ptr<Routing> balance_of(const Rows& rows, std::vector<double> coefficients) {
  auto out = std::make_shared<Routing>();
  out->balance.emplace(rows.cu_seqlens, std::move(coefficients));
  return out;
}

class BalanceTest : public testing::TestWithParam<AuxLoss> {
 protected:
  BalanceTest() { at::manual_seed(1); }
  const Rows rows_ = rows_of({4, 3}, {-1, -1}, {0, 0}, {1, 1});
};

TEST_P(BalanceTest, value_and_gradients_equal_plain_autograds) {
  Layers layers(rows_, at::kDouble, GetParam());
  const std::vector<double> coefficients{0.7, 1.3};
  const auto balance = balance_of(rows_, coefficients);
  const std::vector<Routes> routes = layers.forward(balance);

  std::vector<at::Tensor> p;
  at::Tensor objective = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < routes.size(); ++i) {
    p.push_back(at::softmax(layers.x[i].matmul(layers.w[i].t()), -1));
    objective = objective + (p[i].gather(1, routes[i].ids.to(at::kLong)) * layers.g[i]).sum();
  }
  for (size_t s = 0; s < coefficients.size(); ++s) {
    const auto mine = [&](const at::Tensor& of) {
      return of.slice(0, rows_.cu_seqlens[s], rows_.cu_seqlens[s + 1]);
    };
    std::vector<at::Tensor> its_p, its_ids;
    for (size_t i = 0; i < routes.size(); ++i)
      its_p.push_back(mine(p[i])), its_ids.push_back(mine(routes[i].ids));
    const at::Tensor want = balance_by_torch(GetParam(), its_p, its_ids);
    EXPECT_NEAR(balance->balance->loss(s), want.item<double>(), 1e-12);
    objective = objective + coefficients[s] * want;
  }
  std::vector<at::Tensor> leaves = layers.x;
  leaves.insert(leaves.end(), layers.w.begin(), layers.w.end());
  const auto want = torch::autograd::grad({objective}, leaves);
  const auto got = layers.gradients(balance);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], want[i], 1e-10, 1e-12)) << i;
    EXPECT_TRUE(at::allclose(layers.sums[i].sum, want[got.size() + i], 1e-10, 1e-12)) << i;
  }
}

TEST_P(BalanceTest, a_sequence_has_the_same_bits_in_any_company) {
  const Layers both(rows_, at::kFloat, GetParam());
  Layers alone(rows_of({3}, {-1}, {0}, {1}), at::kFloat, GetParam());
  for (size_t i = 0; i < alone.x.size(); ++i) {
    alone.x[i] = both.x[i].detach().narrow(0, 4, 3).clone().requires_grad_();
    alone.g[i] = both.g[i].narrow(0, 4, 3).clone();
    alone.routers[i].weight = both.routers[i].weight;
  }
  const auto among = balance_of(both.rows, {0.4, 0.9}), own = balance_of(alone.rows, {0.9});
  const auto theirs = both.gradients(among), mine = alone.gradients(own);
  EXPECT_EQ(own->balance->loss(0), among->balance->loss(1));
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_TRUE(at::equal(mine[i], theirs[i].narrow(0, 4, 3))) << i;
}

TEST_P(BalanceTest, a_sequence_without_a_coefficient_learns_what_it_does_without) {
  const Layers layers(rows_, at::kFloat, GetParam());
  const auto without = layers.gradients(nullptr);
  const auto balance = balance_of(rows_, {0.0, 0.8});
  const auto some = layers.gradients(balance);
  EXPECT_GT(balance->balance->loss(0), 0);
  for (size_t i = 0; i < without.size(); ++i) {
    EXPECT_TRUE(at::equal(some[i].narrow(0, 0, 4), without[i].narrow(0, 0, 4))) << i;
    EXPECT_FALSE(at::equal(some[i].narrow(0, 4, 3), without[i].narrow(0, 4, 3))) << i;
  }
}

TEST_P(BalanceTest, a_layer_that_is_computed_again_counts_once) {
  const Layers layers(rows_, at::kFloat, GetParam());
  const auto balance = balance_of(rows_, {1.0, 1.0});
  layers.forward(balance);
  const double once = balance->balance->loss(1);
  const at::NoGradGuard no_grad;
  layers.forward(balance);
  EXPECT_EQ(balance->balance->loss(1), once);
}

// Every expert equally often and equally likely: the least that it can be.
TEST_P(BalanceTest, equal_shares_have_the_value_that_the_formula_says) {
  const Rows rows = rows_of({3}, {-1}, {0}, {1});
  const auto balance = balance_of(rows, {1.0});
  const at::Tensor even = at::full({3, kBalanceExperts}, 1.0 / kBalanceExperts, at::kDouble);
  const at::Tensor ids = at::tensor({0, 1, 2, 3, 4, 5}, at::kInt).view({3, kTopK});
  for (const size_t layer : {size_t{0}, size_t{1}})
    balance->balance->note(layer, GetParam(), even, ids);
  // k of all layers at once; 1 of each of the two.
  EXPECT_NEAR(balance->balance->loss(0), 2.0, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Forms, BalanceTest,
                         testing::Values(AuxLoss::kAllLayers, AuxLoss::kEachLayer));

}  // namespace
}  // namespace twinkle::nn
