#include "twinkle/kernels/experts/routed_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::kernels {
namespace {

using Numbers = std::vector<int64_t>;

// Three tokens, experts 0, 2 and 3 of 5.
at::Tensor some_ids() { return at::tensor({0, 2, 2, 3, 0, 3}, at::kInt).view({3, 2}); }

// Random ascending ids [tokens, k].
at::Tensor drawn_ids(int64_t tokens, int64_t k, int64_t experts) {
  const at::Tensor some = std::get<1>(at::rand({tokens, experts}).topk(k, -1));
  return std::get<0>(some.sort(-1)).to(at::kInt).contiguous();
}

at::Tensor index_of(const RoutedRows& rows) { return at::tensor(rows.tokens, at::kLong); }

// The weights [R].
at::Tensor by_row(const at::Tensor& weights, const RoutedRows& rows) {
  const at::Tensor out = at::zeros({rows.num_rows()}, weights.options());
  return out.index_put({at::tensor(rows.places, at::kLong)}, weights.flatten());
}

TEST(RoutedRows, AreInTheOrderOfTheirExpertsAndTokens) {
  const RoutedRows rows = routed_rows(some_ids(), 5);
  EXPECT_EQ(rows.offsets, (Numbers{0, 2, 2, 4, 6, 6}));
  EXPECT_EQ(rows.tokens, (Numbers{0, 2, 0, 1, 1, 2}));
  EXPECT_EQ(rows.places, (Numbers{0, 2, 3, 4, 1, 5}));
  EXPECT_EQ(rows.num_tokens(), 3);
  EXPECT_EQ(
      error_of([] { routed_rows(some_ids().to(at::kLong), 5); }),
      "kernels: the chosen experts' tensor is Long [3, 2] on cpu, it must be contiguous int32 "
      "[T, k] on the CPU: experts run there alone");
}

TEST(RoutedRows, GatheredAndSummedGoBackToTheirTokens) {
  at::manual_seed(1);
  const RoutedRows rows = routed_rows(drawn_ids(70, 3, 9), 9);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor x = at::randn({70, 37}).to(type), y = gather_rows(x, rows);
    EXPECT_TRUE(at::equal(y, x.index_select(0, index_of(rows))));
    const at::Tensor some = at::randn({210, 37}).to(type);
    const at::Tensor truth =
        at::zeros({70, 37}, at::kDouble).index_add(0, index_of(rows), some.to(at::kDouble));
    const double eps = type == at::kBFloat16 ? 1.0 / 256 : 1e-6;
    EXPECT_TRUE(at::allclose(sum_rows(some, rows).to(at::kDouble), truth, eps, 1e-6)) << type;
  }
}

TEST(RoutedRows, SumsInTheOrderOfIdsAndRoundsOnce) {
  // In bfloat16 1 + 2^-8 + 2^-8 is 1 where every sum is rounded, 1 + 2^-7 where the last is.
  const RoutedRows rows = routed_rows(at::tensor({0, 1, 2}, at::kInt).view({1, 3}), 3);
  const at::Tensor y = at::tensor({1.0f, 0x1p-8f, 0x1p-8f}).view({3, 1}).to(at::kBFloat16);
  EXPECT_EQ(sum_rows(y, rows).item<float>(), 1 + 0x1p-7f);
  // In float32 2^24 + 1 - 2^24 depends on the order.
  const at::Tensor z = at::tensor({0x1p24f, 1.0f, -0x1p24f}).view({3, 1});
  EXPECT_EQ(sum_rows(z, rows).item<float>(), 0);
}

TEST(RoutedRows, SwigluIsSilusProductTimesTheWeightRoundedOnce) {
  at::manual_seed(2);
  const RoutedRows rows = routed_rows(drawn_ids(50, 2, 7), 7);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor gu = at::randn({100, 2 * 21}).to(type);
    const at::Tensor w = at::rand({50, 2}, type == at::kDouble ? at::kDouble : at::kFloat);
    const auto wide = gu.to(at::kDouble).chunk(2, -1);
    const at::Tensor truth =
        at::silu(wide[0]) * wide[1] * by_row(w, rows).to(at::kDouble).unsqueeze(1);
    const double eps = type == at::kBFloat16 ? 1.0 / 256 : type == at::kFloat ? 2e-6 : 1e-13;
    EXPECT_TRUE(at::allclose(routed_swiglu(gu, w, rows).to(at::kDouble), truth, eps, 1e-30))
        << type;
  }
}

TEST(RoutedRows, SwiglusGradientsEqualTorchs) {
  at::manual_seed(3);
  const RoutedRows rows = routed_rows(drawn_ids(50, 2, 7), 7);
  const at::Tensor gu = leaf({100, 2 * 21}), w = leaf({50, 2}),
                   grad = at::randn({100, 21}, at::kDouble);
  const auto half = gu.chunk(2, -1);
  (at::silu(half[0]) * half[1] * by_row(w, rows).unsqueeze(1)).backward(grad);
  const auto got = routed_swiglu_backward(grad, gu.detach(), w.detach(), rows);
  EXPECT_TRUE(at::allclose(got.gate_up, gu.grad(), 1e-11, 1e-12));
  EXPECT_TRUE(at::allclose(got.weights, w.grad(), 1e-11, 1e-12));
  const auto narrow = routed_swiglu_backward(grad.to(at::kFloat), gu.detach().to(at::kFloat),
                                             w.detach().to(at::kFloat), rows);
  EXPECT_TRUE(at::allclose(narrow.gate_up.to(at::kDouble), gu.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(narrow.weights.to(at::kDouble), w.grad(), 1e-4, 1e-5));
  const auto short_ = routed_swiglu_backward(grad.to(at::kBFloat16), gu.detach().to(at::kBFloat16),
                                             w.detach().to(at::kFloat), rows);
  EXPECT_TRUE(at::allclose(short_.gate_up.to(at::kDouble), gu.grad(), 0.05, 0.03));
}

TEST(RoutedRows, ARowHasItsBitsInAnyCompany) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor ids = drawn_ids(300, 2, 7), gu = at::randn({600, 2 * 37}).to(type),
                     w = at::rand({300, 2}), grad = at::randn({600, 37}).to(type);
    const RoutedRows rows = routed_rows(ids, 7);
    const at::Tensor h = routed_swiglu(gu, w, rows), y = sum_rows(h, rows);
    const auto slopes = routed_swiglu_backward(grad, gu, w, rows);
    for (const int64_t t : {0, 131, 299}) {
      const RoutedRows alone = routed_rows(ids.narrow(0, t, 1), 7);
      const at::Tensor mine = at::tensor(
          Numbers(rows.places.begin() + 2 * t, rows.places.begin() + 2 * t + 2), at::kLong);
      const at::Tensor one = gu.index_select(0, mine), weight = w.narrow(0, t, 1);
      const at::Tensor g = routed_swiglu(one, weight, alone);
      EXPECT_TRUE(at::equal(g, h.index_select(0, mine)));
      EXPECT_TRUE(at::equal(sum_rows(g, alone), y.narrow(0, t, 1)));
      const auto slope = routed_swiglu_backward(grad.index_select(0, mine), one, weight, alone);
      EXPECT_TRUE(at::equal(slope.gate_up, slopes.gate_up.index_select(0, mine)));
      EXPECT_TRUE(at::equal(slope.weights, slopes.weights.narrow(0, t, 1)));
    }
  }
}

}  // namespace
}  // namespace twinkle::kernels
