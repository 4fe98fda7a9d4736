// The losses of rows that a policy sampled, against their papers' formulas, written out row by row
// in float64, and against finite differences of these.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/loss.h"

namespace twinkle::loss {
namespace {

constexpr int64_t kRows = 64;
using SampledFormula = std::function<double(double lp, double q, double a)>;

Inputs sampled() {
  at::manual_seed(5);
  Inputs in{.logprobs = -at::rand({kRows}) * 6,
            .weights = at::randn({kRows}),  // both signs
            .cu_seqlens = {0, 20, 20, kRows}};
  in.weights.slice(0, 0, kRows, 5).zero_();
  in.extras["logprobs"] = in.logprobs + at::randn({kRows}) * 0.4F;
  in.extras["advantages"] = at::randn({kRows});
  in.extras["advantages"][7] = 0;
  return in;
}

// For every single row: the sum's value, and its derivative by central differences. `constant`:
// what the formula holds fixed is given the row's own log-probability.
void expect_sum_of(const char* name, const char* options, const SampledFormula& formula,
                   const SampledFormula& derivative = {}) {
  const Inputs in = sampled();
  const Output out = run(find(name), in, parse_json(options, "options"));
  double sum = 0, num_tokens = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    const auto at = [&](const at::Tensor& x) { return static_cast<double>(x[t].item<float>()); };
    const double lp = at(in.logprobs), w = at(in.weights), q = at(in.extras.at("logprobs")),
                 a = at(in.extras.at("advantages"));
    sum += w * formula(lp, q, a);
    num_tokens += w != 0;
    const double grad = derivative ? derivative(lp, q, a)
                                   : (formula(lp + 1e-6, q, a) - formula(lp - 1e-6, q, a)) / 2e-6;
    EXPECT_NEAR(at(out.grad), w * grad, 1e-6 * std::max(1.0, std::abs(grad))) << name << " " << t;
  }
  EXPECT_NEAR(out.loss, sum, 1e-9 * std::max(1.0, std::abs(sum))) << name;
  EXPECT_EQ(out.num_tokens, num_tokens);
}

TEST(SampledRows, ImportanceSamplingIsItsFormula) {
  expect_sum_of("importance_sampling", "{}",
                [](double lp, double q, double a) { return -std::exp(lp - q) * a; });
}

TEST(SampledRows, PpoIsItsFormulaWithTheBoundsOfTheRatio) {
  const auto with = [](double low, double high) {
    return [=](double lp, double q, double a) {
      const double r = std::exp(lp - q);
      return -std::min(r * a, std::clamp(r, low, high) * a);
    };
  };
  expect_sum_of("ppo", "{}", with(0.8, 1.2));
  expect_sum_of("ppo", R"({"clip_low_threshold": 0.95, "clip_high_threshold": 1.5})",
                with(0.95, 1.5));
}

TEST(SampledRows, CispoWeighsEveryRowByAConstant) {
  const auto factor = [](double lp, double q, double a) {
    return -std::clamp(std::exp(lp - q), 0.5, 1.3) * a;
  };
  expect_sum_of(
      "cispo", R"({"clip_low_threshold": 0.5, "clip_high_threshold": 1.3})",
      [&](double lp, double q, double a) { return factor(lp, q, a) * lp; }, factor);
}

TEST(SampledRows, DroIsItsFormula) {
  for (const auto& [options, beta] :
       {std::pair{"{}", 0.05}, std::pair{R"({"beta": 0.4})", 0.4}, std::pair{R"({"beta": 0})", 0.}})
    expect_sum_of("dro", options, [beta = beta](double lp, double q, double a) {
      return -(lp * a - beta / 2 * (lp - q) * (lp - q));
    });
}

TEST(SampledRows, EveryRowMayHaveBoundsOfItsOwn) {
  for (const char* name : {"ppo", "cispo"}) {
    Inputs in = sampled();
    const Output expected =
        run(find(name), in, JsonObject{{"clip_low_threshold", 0.5}, {"clip_high_threshold", 2.0}});
    in.extras["clip_low_threshold"] = at::full({kRows}, 0.5F);
    in.extras["clip_high_threshold"] = at::full({kRows}, 2.0F);
    const Output out = run(find(name), in);
    EXPECT_EQ(out.loss, expected.loss);
    EXPECT_TRUE(at::equal(out.grad, expected.grad));
  }
}

TEST(SampledRows, ARowsBoundsThatBoundNothingAreRefused) {
  for (const auto& [low, high] :
       {std::pair{NAN, 2.0F}, {0.5F, NAN}, {-1.0F, 2.0F}, {2.0F, 0.5F}, {0.5F, INFINITY}}) {
    Inputs in = sampled();
    in.weights[1] = 1;
    in.extras["clip_low_threshold"] = at::full({kRows}, 0.5F);
    in.extras["clip_high_threshold"] = at::full({kRows}, 2.0F);
    in.extras["clip_low_threshold"][1] = low;
    in.extras["clip_high_threshold"][1] = high;
    for (const char* name : {"ppo", "cispo"}) {
      EXPECT_NE(invalid_of([&] { run(find(name), in); }).find(" at row 1; they bound the ratio"),
                std::string::npos);
      EXPECT_NE(invalid_of([&] { prepare(find(name), in); }), "no error");
    }
    in.weights[1] = 0;
    EXPECT_TRUE(finite(run(find("ppo"), in))) << "it does not count";
  }
}

TEST(SampledRows, RowsWithoutWeightCountForNothingWhateverTheyHold) {
  for (const char* name : {"importance_sampling", "ppo", "cispo", "dro"}) {
    Inputs in = sampled();
    const Output clean = run(find(name), in);
    in.logprobs.slice(0, 0, kRows, 5).fill_(-INFINITY);
    in.extras["advantages"].slice(0, 0, kRows, 5).fill_(NAN);
    const Output out = run(find(name), in);
    EXPECT_EQ(out.loss, clean.loss) << name;
    EXPECT_TRUE(at::equal(out.grad, clean.grad)) << name;
  }
}

TEST(SampledRows, ARatioBeyondFloat32IsNotFinite) {
  Inputs in = sampled();
  in.weights.fill_(1);
  in.extras["logprobs"][0] = -200.0F;
  in.extras["advantages"][0] = 1.0F;
  for (const char* name : {"importance_sampling"}) EXPECT_FALSE(finite(run(find(name), in)));
  EXPECT_TRUE(finite(run(find("cispo"), in))) << "clipped";
}

TEST(SampledRows, RefuseWhatTheyCannotUse) {
  const auto text = [](const char* name, const Json& options) {
    return invalid_of([&] { run(find(name), sampled(), options); });
  };
  EXPECT_EQ(text("importance_sampling", JsonObject{{"beta", 1}}),
            "loss: importance_sampling has no option 'beta', it has none");
  EXPECT_EQ(text("dro", JsonObject{{"beta", -1}}),
            "loss: beta is -1, it must be a number of at least 0");
  EXPECT_EQ(text("ppo", JsonObject{{"clip_low_threshold", 1.3}}),
            "loss: ppo: clip_low_threshold is 1.3 and clip_high_threshold 1.2; they bound the "
            "ratio, the first must be at least 0 and at most the second");
  EXPECT_EQ(invalid_of([] {
              Inputs in = sampled();
              in.extras.erase("advantages");
              run(find("ppo"), in);
            }),
            "loss: ppo needs 'advantages', pass it with the batch");
}

}  // namespace
}  // namespace twinkle::loss
