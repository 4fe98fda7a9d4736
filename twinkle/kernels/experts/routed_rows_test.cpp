#include "twinkle/kernels/experts/routed_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/allocation_meter_for_test.h"
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

// Each routed row's expert's bias.
at::Tensor of_experts(const at::Tensor& bias, const RoutedRows& rows) {
  std::vector<int64_t> ids;
  for (size_t e = 0; e + 1 < rows.offsets.size(); ++e)
    ids.insert(ids.end(), static_cast<size_t>(rows.offsets[e + 1] - rows.offsets[e]),
               static_cast<int64_t>(e));
  return bias.index_select(0, at::tensor(ids, at::kLong));
}

at::Tensor clamped_by_torch(const at::Tensor& gate_up, const at::Tensor& bias,
                            const RoutedRows& rows, const ClampedSwiglu& options) {
  const at::Tensor y = gate_up + of_experts(bias, rows);
  const at::Tensor g = y.slice(1, 0, y.size(1), 2).clamp_max(options.limit),
                   u = y.slice(1, 1, y.size(1), 2).clamp(-options.limit, options.limit);
  return (u + 1) * g * at::sigmoid(options.alpha * g);
}

constexpr ClampedSwiglu kClamp{.limit = 0.8, .alpha = 1.7};  // a third is held

TEST(RoutedRows, TheClampedSwigluWithBiasesIsTorchsTimesTheWeightRoundedOnce) {
  at::manual_seed(5);
  const RoutedRows rows = routed_rows(drawn_ids(50, 2, 7), 7);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor gu = at::randn({100, 2 * 21}).to(type), bias = at::randn({7, 2 * 21}).to(type);
    const at::Tensor w = at::rand({50, 2}, type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor truth =
        clamped_by_torch(gu.to(at::kDouble), bias.to(at::kDouble), rows, kClamp) *
        by_row(w, rows).to(at::kDouble).unsqueeze(1);
    const double eps = type == at::kBFloat16 ? 1.0 / 256 : type == at::kFloat ? 1e-5 : 1e-12;
    const at::Tensor got = routed_clamped_swiglu(gu, bias, w, rows, kClamp);
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), truth, eps, eps / 100)) << type;
  }
}

TEST(RoutedRows, TheClampedSwiglusGradientsEqualTorchs) {
  at::manual_seed(6);
  const RoutedRows rows = routed_rows(drawn_ids(50, 2, 7), 7);
  const at::Tensor gu = leaf({100, 2 * 21}), bias = leaf({7, 2 * 21}), w = leaf({50, 2}),
                   grad = at::randn({100, 21}, at::kDouble);
  (clamped_by_torch(gu, bias, rows, kClamp) * by_row(w, rows).unsqueeze(1)).backward(grad);
  const auto got =
      routed_clamped_swiglu_backward(grad, gu.detach(), bias.detach(), w.detach(), rows, kClamp);
  EXPECT_TRUE(at::allclose(got.gate_up, gu.grad(), 1e-11, 1e-12));
  EXPECT_TRUE(at::allclose(got.weights, w.grad(), 1e-11, 1e-12));
  for (int64_t e = 0; e < 7; ++e) {
    const auto begin = rows.offsets[static_cast<size_t>(e)],
               end = rows.offsets[static_cast<size_t>(e) + 1];
    EXPECT_TRUE(
        at::allclose(got.gate_up.slice(0, begin, end).sum(0), bias.grad()[e], 1e-11, 1e-12));
  }
  const at::Tensor narrow_bias = bias.detach().to(at::kFloat);
  const auto narrow =
      routed_clamped_swiglu_backward(grad.to(at::kFloat), gu.detach().to(at::kFloat), narrow_bias,
                                     w.detach().to(at::kFloat), rows, kClamp);
  EXPECT_TRUE(at::allclose(narrow.gate_up.to(at::kDouble), gu.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(narrow.weights.to(at::kDouble), w.grad(), 1e-4, 1e-5));
}

TEST(RoutedRows, SumsOfBiasedRowsHaveTheBiasesByWeight) {
  at::manual_seed(8);
  const RoutedRows rows = routed_rows(drawn_ids(70, 3, 9), 9);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor y = at::randn({210, 37}).to(type), bias = at::randn({9, 37}).to(type);
    const at::Tensor w = at::rand({70, 3}, type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor biases = of_experts(bias.to(at::kDouble), rows);
    const at::Tensor all =
        y.to(at::kDouble) + biases * by_row(w, rows).to(at::kDouble).unsqueeze(1);
    const at::Tensor truth = at::zeros({70, 37}, at::kDouble).index_add(0, index_of(rows), all);
    const double eps = type == at::kBFloat16 ? 1.0 / 256 : 1e-5;
    EXPECT_TRUE(at::allclose(sum_biased_rows(y, bias, w, rows).to(at::kDouble), truth, eps, 1e-5));
    const at::Tensor places = at::tensor(rows.places, at::kLong);
    const at::Tensor slopes =
        (y.to(at::kDouble) * biases).sum(1).index_select(0, places).view({70, 3});
    EXPECT_TRUE(
        at::allclose(biased_rows_backward(y, bias, rows).to(at::kDouble), slopes, 1e-4, 1e-5));
  }
}

// Most experts have no row of a few, as in decoding.
TEST(RoutedRows, BiasesInBFloat16AreReadAsTheyAre) {
  constexpr int64_t kExperts = 64, kWidth = 512;
  const RoutedRows rows = routed_rows(at::tensor({3, 40}, at::kInt).view({1, 2}), kExperts);
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
  const at::Tensor gu = draw({2, 2 * kWidth}), y = draw({2, kWidth}), w = at::rand({1, 2}),
                   bias = draw({kExperts, 2 * kWidth}), down_bias = draw({kExperts, kWidth});
  const AllocationMeter meter;
  routed_clamped_swiglu(gu, bias, w, rows, kClamp);
  routed_clamped_swiglu_backward(y, gu, bias, w, rows, kClamp);
  sum_biased_rows(y, down_bias, w, rows);
  biased_rows_backward(y, down_bias, rows);
  EXPECT_LT(meter.peak(), down_bias.numel());
}

TEST(RoutedRows, ANaNOfARowStaysInIt) {
  const RoutedRows rows = routed_rows(at::tensor({0, 1}, at::kInt).view({1, 2}), 2);
  const at::Tensor gu = at::ones({2, 8}), w = at::ones({1, 2}), bias = at::zeros({2, 8});
  gu[1].fill_(std::nanf(""));
  const at::Tensor h = routed_clamped_swiglu(gu, bias, w, rows, kClamp);
  EXPECT_TRUE(at::isfinite(h[0]).all().item<bool>());
  EXPECT_TRUE(at::isnan(h[1]).all().item<bool>());
}

TEST(RoutedRows, ARowHasItsBitsInAnyCompany) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor ids = drawn_ids(300, 2, 7), gu = at::randn({600, 2 * 37}).to(type),
                     w = at::rand({300, 2}), grad = at::randn({600, 37}).to(type);
    const RoutedRows rows = routed_rows(ids, 7);
    const at::Tensor h = routed_swiglu(gu, w, rows), y = sum_rows(h, rows);
    const auto slopes = routed_swiglu_backward(grad, gu, w, rows);
    const at::Tensor bias = at::randn({7, 2 * 37}).to(type),
                     down_bias = at::randn({7, 37}).to(type);
    const at::Tensor clamped = routed_clamped_swiglu(gu, bias, w, rows, kClamp),
                     biased = sum_biased_rows(clamped, down_bias, w, rows);
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
      const at::Tensor c = routed_clamped_swiglu(one, bias, weight, alone, kClamp);
      EXPECT_TRUE(at::equal(c, clamped.index_select(0, mine)));
      EXPECT_TRUE(at::equal(sum_biased_rows(c, down_bias, weight, alone), biased.narrow(0, t, 1)));
    }
  }
}

}  // namespace
}  // namespace twinkle::kernels
