#include "twinkle/kernels/softmax.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

class Softmax : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Softmax, EqualsLogSoftmaxItsEntropyAndItsGradient) {
  at::manual_seed(3);
  for (const int64_t vocab : {1, 15, 16, 1000, 4097}) {
    for (const float t : {0.5f, 1.0f, 3.0f}) {
      const auto logits = (at::randn({4, vocab}, at::kDouble) * 8).to(GetParam());
      const auto want = at::log_softmax(logits.to(at::kDouble) / t, 1);
      const auto p = want.exp();
      for (int64_t r = 0; r < 4; ++r) {
        const auto id = static_cast<int32_t>(r * (vocab - 1) / 3);
        const RowStats got = softmax_stats(logits, r, id, t, true);
        const double near = GetParam() == at::kDouble ? 1e-12 : 2e-5;
        EXPECT_NEAR(got.logprob, want[r][id].item<double>(), near);
        EXPECT_NEAR(got.entropy, -(p[r] * want[r]).sum().item<double>(), near);
        auto grad = logits.clone();
        softmax_grad_(grad, r, id, t, {got, 0.5f});
        auto expected = -p[r] * 0.5 / t;
        expected[id] += 0.5 / t;
        const double limit = GetParam() == at::kBFloat16 ? 4e-3
                             : GetParam() == at::kFloat  ? 1e-6
                                                         : 1e-12;
        EXPECT_LT((grad[r].to(at::kDouble) - expected).abs().max().item<double>(), limit);
        // d H / d logit = -p (log p + H) / t
        const auto of_entropy = -p[r] * (want[r] - (p[r] * want[r]).sum()) / t;
        auto both = logits.clone();
        softmax_grad_(both, r, id, t, {got, 0.5f, -2.0f});
        EXPECT_LT((both[r].to(at::kDouble) - expected + 2 * of_entropy).abs().max().item<double>(),
                  4 * limit);
      }
    }
  }
}

TEST_P(Softmax, AnyLogprobOfARowComesFromItsStatsBitForBit) {
  at::manual_seed(4);
  const auto logits = (at::randn({2, 333}, at::kDouble) * 8).to(GetParam());
  for (const float t : {0.3f, 1.0f, 1.7f}) {
    const RowStats stats = softmax_stats(logits, 1, 0, t, false);
    for (int32_t id = 0; id < 333; ++id) {
      EXPECT_EQ(softmax_logprob(logits, 1, id, t, stats),
                softmax_stats(logits, 1, id, t, false).logprob);
    }
  }
}

TEST_P(Softmax, TheEntropysGradientOfALogitThatCannotBeDrawnIsZero) {
  auto logits = at::zeros({1, 40}, GetParam());
  logits[0][3] = -HUGE_VAL;
  const RowStats got = softmax_stats(logits, 0, 5, 1, true);
  EXPECT_NEAR(got.entropy, std::log(39.0), 1e-5);
  logits[0][6] = 2;
  const RowStats uneven = softmax_stats(logits, 0, 5, 1, true);
  softmax_grad_(logits, 0, 5, 1, {uneven, 1, 1});
  EXPECT_EQ(logits[0][3].item<double>(), 0);
  EXPECT_NEAR(logits.sum().item<double>(), 0, GetParam() == at::kBFloat16 ? 4e-3 : 1e-5);
  EXPECT_TRUE(at::isfinite(logits).all().item<bool>());
}

// The gradient and the log-probability are the rest to 1 when a large vocabulary is nearly certain
// of one token.
TEST_P(Softmax, ALargeVocabularysSmallProbabilitiesAddUp) {
  at::manual_seed(5);
  auto logits = at::randn({1, 50000}, at::kDouble);
  logits[0][7] = 20;
  logits = logits.to(GetParam());
  const auto want = at::log_softmax(logits.to(at::kDouble), 1)[0][7].item<double>();
  const RowStats got = softmax_stats(logits, 0, 7, 1, false);
  EXPECT_NEAR(got.logprob / want, 1, 1e-6);
  EXPECT_NEAR((got.sum - 1) / std::expm1(-want), 1, 1e-6);
}

// For capped scores as small as 1e-4 and as large as the cap allows.
TEST_P(Softmax, TheSoftcapAndItsGradientAreThoseOfTanhWhereverAnElementStands) {
  at::manual_seed(6);
  const auto x = (at::randn({3, 333}, at::kDouble) * at::logspace(-4, 2, 333)).to(GetParam());
  const auto grad = at::randn({3, 333}, at::kDouble).to(GetParam());
  const double near = GetParam() == at::kDouble ? 1e-13 : GetParam() == at::kFloat ? 1e-6 : 5e-3;
  for (const double cap : {30.0, 3.0}) {
    const auto truth = cap * (x.to(at::kDouble) / cap).tanh();
    for (const Simd* simd : supported_simd()) {
      SCOPED_TRACE(simd->name);
      auto y = x.clone();
      softcap_(y, cap, *simd);
      EXPECT_TRUE(at::allclose(y.to(at::kDouble), truth, near, 0));
      auto slope = grad.clone();
      softcap_grad_(slope, y, cap, *simd);
      const auto want = grad.to(at::kDouble) * (1 - (y.to(at::kDouble) / cap).square());
      EXPECT_TRUE(at::allclose(slope.to(at::kDouble), want, near, near));
      for (const int64_t i : {1, 8, 17, 330}) {
        auto part = x.flatten().slice(0, i).clone();
        softcap_(part, cap, *simd);
        EXPECT_TRUE(at::equal(part, y.flatten().slice(0, i)));
        auto of_part = grad.flatten().slice(0, i).clone();
        softcap_grad_(of_part, part, cap, *simd);
        EXPECT_TRUE(at::equal(of_part, slope.flatten().slice(0, i)));
      }
    }
  }
}

TEST_P(Softmax, TheSoftcapOfFarLogitsIsTheCapAndANaNStays) {
  auto x = at::tensor({-HUGE_VAL, -1e4, 0.0, 1e4, HUGE_VAL, std::nan("")}).to(GetParam());
  softcap_(x, 30);
  const auto y = x.to(at::kDouble);
  EXPECT_TRUE(at::equal(y.slice(0, 0, 5), at::tensor({-30.0, -30.0, 0.0, 30.0, 30.0})));
  EXPECT_TRUE(y[5].isnan().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Types, Softmax, testing::Values(at::kFloat, at::kBFloat16, at::kDouble));

TEST(Softmax, LetsNaNThroughInsteadOfHidingIt) {
  for (const int64_t at : {0, 17, 31, 32}) {
    auto logits = at::zeros({1, 33});
    logits[0][at] = std::nan("");
    EXPECT_TRUE(std::isnan(softmax_stats(logits, 0, 5, 1, false).logprob)) << at;
  }
}

TEST(Softmax, RefusesOtherTypesByName) {
  auto x = at::zeros({1, 4}), half = x.to(at::kHalf), meta = at::zeros({4}, at::device(at::kMeta));
  EXPECT_THROW(softcap_(half, 1), Error);
  EXPECT_THROW(softcap_(meta, 1), Error);
  EXPECT_THROW(softcap_(x, 0), Error);
  EXPECT_THROW(softcap_grad_(x, at::zeros({4}), 1), Error);
  EXPECT_THROW(softmax_stats(at::zeros({1, 4}, at::kHalf), 0, 0, 1, false), Error);
}

}  // namespace
}  // namespace twinkle::kernels
