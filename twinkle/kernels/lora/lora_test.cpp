#include "twinkle/kernels/lora/lora.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::kernels {
namespace {

struct LoraCase {
  at::ScalarType type;
  int64_t rank, inputs, outputs;
  double dropout;
};

class Lora : public testing::TestWithParam<LoraCase> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    const LoraCase c = GetParam();
    const auto type = c.type == at::kDouble ? at::kDouble : at::kFloat;
    f.a = at::randn({c.rank, c.inputs}, type);
    f.b = at::randn({c.outputs, c.rank}, type);
    f.scale = 0.75;
    f.repack(c.type);
    a = f.a.to(c.type).to(type), b = f.b.to(c.type).to(type);
    x = at::randn({40, c.inputs}, type).to(c.type);
    y = at::randn({40, c.outputs}, type).to(c.type);
    dy = at::randn({40, c.outputs}, type).to(c.type);
    dx = at::randn({40, c.inputs}, type).to(c.type);
    drop = {c.dropout, c.dropout > 0 ? 99u : 0u};
  }
  double tolerance() const { return GetParam().type == at::kBFloat16 ? 0.02 : 1e-4; }
  LoraFactors f;
  at::Tensor a, b;  // as they are read
  at::Tensor x, y, dy, dx;
  LoraDropout drop;
};

TEST_P(Lora, EqualsThePlainProductsForwardAndBackwardWithEverySetOfInstructions) {
  const int64_t begin = 3, end = 36;
  const auto mask = lora_dropout_mask(end - begin, x.size(1), drop).to(f.a.scalar_type());
  const auto xs = x.slice(0, begin, end).to(f.a.scalar_type()) * mask;
  const auto dys = dy.slice(0, begin, end).to(f.a.scalar_type());
  auto want_y = y.clone(), want_dx = dx.clone();
  want_y.slice(0, begin, end) += (xs.mm(a.t()).mm(b.t()) * f.scale).to(x.scalar_type());
  const auto dh = dys.mm(b) * f.scale;
  want_dx.slice(0, begin, end) += (dh.mm(a) * mask).to(x.scalar_type());
  const auto want_ga = at::ones_like(f.a) + dh.t().mm(xs);
  const auto want_gb = at::ones_like(f.b) + dys.t().mm(xs.mm(a.t())) * f.scale;
  const auto close = [&](const at::Tensor& got, const at::Tensor& want) {
    const double scale = want.to(at::kDouble).abs().max().item<double>();
    return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>() / scale;
  };
  for (const Simd* simd : supported_simd()) {
    auto got_y = y.clone(), got_dx = dx.clone();
    auto ga = at::ones_like(f.a), gb = at::ones_like(f.b);
    const LoraPart parts[] = {{begin, end, &f, drop, ga, gb}};
    const auto h = lora_forward(x, parts, got_y, *simd);
    lora_backward({dy, x, h}, parts, got_dx, *simd);
    EXPECT_LT(close(got_y, want_y), tolerance()) << simd->name;
    EXPECT_LT(close(got_dx, want_dx), tolerance()) << simd->name;
    EXPECT_LT(close(ga, want_ga), 1e-4) << simd->name;
    EXPECT_LT(close(gb, want_gb), 1e-4) << simd->name;
    EXPECT_TRUE(at::equal(lora_dropout_mask(4, 33, drop, *simd), lora_dropout_mask(4, 33, drop)));
  }
}

TEST_P(Lora, GivesASequenceTheSameBitsAloneAndAmongOthersAndWithAnyThreads) {
  LoraFactors other{.a = at::randn({7, x.size(1)}, f.a.options()),
                    .b = at::randn({y.size(1), 7}, f.a.options()),
                    .scale = 2};
  other.repack(x.scalar_type());
  const int64_t cu[] = {0, 5, 9, 10, 38, 40};  // the second and the fourth are ours
  for (const Simd* simd : supported_simd()) {
    // Alone, one call for each sequence, on one thread.
    at::set_num_threads(1);
    auto want_y = y.clone(), want_dx = dx.clone();
    auto want_ga = at::ones_like(f.a), want_gb = at::ones_like(f.b);
    for (const int64_t s : {1, 3}) {
      const int64_t rows = cu[s + 1] - cu[s];
      const auto row = [&](const at::Tensor& t) {
        return t.slice(0, cu[s], cu[s + 1]).contiguous();
      };
      auto one_y = row(want_y), one_dx = row(want_dx);
      const LoraPart alone[] = {{0, rows, &f, drop, want_ga, want_gb}};
      const auto h = lora_forward(row(x), alone, one_y, *simd);
      lora_backward({row(dy), row(x), h}, alone, one_dx, *simd);
      want_y.slice(0, cu[s], cu[s + 1]).copy_(one_y);
      want_dx.slice(0, cu[s], cu[s + 1]).copy_(one_dx);
    }
    at::set_num_threads(2);
    auto got_y = y.clone(), got_dx = dx.clone();
    auto ga = at::ones_like(f.a), gb = at::ones_like(f.b);
    auto others_ga = at::zeros_like(other.a), others_gb = at::zeros_like(other.b);
    std::vector<LoraPart> parts;
    for (int s = 0; s < 5; ++s) {
      const bool ours = s == 1 || s == 3;
      parts.push_back({cu[s], cu[s + 1], ours ? &f : &other, ours ? drop : LoraDropout{},
                       ours ? ga : others_ga, ours ? gb : others_gb});
    }
    const auto h = lora_forward(x, parts, got_y, *simd);
    lora_backward({dy, x, h}, parts, got_dx, *simd);
    for (const int64_t s : {1, 3}) {
      EXPECT_TRUE(at::equal(got_y.slice(0, cu[s], cu[s + 1]), want_y.slice(0, cu[s], cu[s + 1])));
      EXPECT_TRUE(at::equal(got_dx.slice(0, cu[s], cu[s + 1]), want_dx.slice(0, cu[s], cu[s + 1])));
    }
    EXPECT_TRUE(at::equal(ga, want_ga)) << simd->name;
    EXPECT_TRUE(at::equal(gb, want_gb)) << simd->name;
  }
}

TEST_P(Lora, FactorsOfAnotherTypeThanTheRowsAreRoundedToItAndStayAsTheyAre) {
  const at::Tensor a_before = f.a.clone(), b_before = f.b.clone();
  f.repack(GetParam().type);
  EXPECT_EQ(f.a_read().scalar_type(), x.scalar_type());
  EXPECT_TRUE(at::equal(f.a_read().to(a.scalar_type()), a));
  EXPECT_TRUE(at::equal(f.b_rO.to(b.scalar_type()), b.t()));
  EXPECT_TRUE(f.b_rO.is_contiguous());
  EXPECT_EQ(f.a_rI.defined(), GetParam().type == at::kBFloat16) << "no second copy of the same";
  EXPECT_TRUE(at::equal(f.a, a_before));
  EXPECT_TRUE(at::equal(f.b, b_before));
}

TEST_P(Lora, LeavesGradientsThatAreNotWantedAlone) {
  auto ga = at::ones_like(f.a), none = at::Tensor();
  const LoraPart parts[] = {{0, 4, &f, drop, {}, {}}, {4, 9, &f, drop, ga, {}}};
  const auto h = lora_forward(x, parts, y);
  lora_backward({dy, x, h}, parts, none);
  auto want = at::ones_like(f.a);
  const LoraPart alone[] = {{4, 9, &f, drop, want, {}}};
  const auto h_alone = lora_forward(x, alone, y);
  lora_backward({dy, x, h_alone}, alone, none);
  EXPECT_TRUE(at::equal(ga, want));
  EXPECT_FALSE(at::equal(ga, at::ones_like(f.a)));
}

TEST_P(Lora, RowsThatBeginInsideTheirSequenceHaveItsMask) {
  const LoraPart whole{.begin = 0, .end = 33, .factors = &f, .dropout = drop};
  LoraPart head = whole, rest = whole;
  head.end = rest.begin = rest.first = 20;
  at::Tensor want = y.clone(), got = y.clone();
  const at::Tensor h = lora_forward(x, std::span(&whole, 1), want);
  EXPECT_TRUE(at::equal(lora_forward(x, std::vector{head, rest}, got), h));
  EXPECT_TRUE(at::equal(got, want));
  at::Tensor want_dx = dx.clone(), got_dx = dx.clone();
  lora_backward({dy, x, h}, std::span(&whole, 1), want_dx);
  lora_backward({dy, x, h}, std::vector{head, rest}, got_dx);
  EXPECT_TRUE(at::equal(got_dx, want_dx));
  LoraPart alone = rest;  // its rows gathered
  alone.begin = 0, alone.end = 13;
  at::Tensor mine = y.slice(0, 20, 33).clone();
  lora_forward(x.slice(0, 20, 33).contiguous(), std::span(&alone, 1), mine);
  EXPECT_TRUE(at::equal(mine, want.slice(0, 20, 33)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Lora,
                         testing::Values(LoraCase{at::kFloat, 8, 64, 48, 0},
                                         LoraCase{at::kFloat, 5, 37, 101, 0.1},
                                         LoraCase{at::kBFloat16, 16, 96, 64, 0},
                                         LoraCase{at::kBFloat16, 33, 70, 200, 0.3},
                                         LoraCase{at::kDouble, 3, 31, 17, 0.5},
                                         LoraCase{at::kFloat, 1, 16, 1, 0}));

// Two sequences of one adapter beside one of another, with dropout, whose mask depends on no value.
TEST(Lora, HasTheGradientsOfFiniteDifferences) {
  at::manual_seed(11);
  const auto draw = [](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, at::kDouble);
  };
  LoraFactors f{.a = draw(3, 7), .b = draw(5, 3), .scale = 0.75};
  LoraFactors g{.a = draw(2, 7), .b = draw(5, 2), .scale = 2};
  auto x = draw(9, 7), dy = draw(9, 5), dx = at::zeros({9, 7}, at::kDouble);
  const auto grads = [](const LoraFactors& of) {
    return std::pair{at::zeros_like(of.a), at::zeros_like(of.b)};
  };
  const auto [fa, fb] = grads(f);
  const auto [ga, gb] = grads(g);
  const LoraDropout drop{0.25, 99};
  const LoraPart parts[] = {
      {0, 4, &f, drop, fa, fb}, {4, 6, &g, {}, ga, gb}, {6, 9, &f, drop, fa, fb}};
  const auto run = [&](at::Tensor& y) {
    f.repack(at::kDouble), g.repack(at::kDouble);
    return lora_forward(x, parts, y);
  };
  const auto value = [&] {
    auto y = at::zeros({9, 5}, at::kDouble);
    run(y);
    return (y * dy).sum();
  };
  auto y = at::zeros({9, 5}, at::kDouble);
  const auto h = run(y);
  lora_backward({dy, x, h}, parts, dx);
  for (const auto& [got, of] : {std::pair{dx, x}, {fa, f.a}, {fb, f.b}, {ga, g.a}, {gb, g.b}}) {
    EXPECT_LT((got - finite_difference(value, of)).abs().max().item<double>(), 1e-7);
  }
}

TEST(LoraDropout, KeepsTheRightShareOfAMillionDraws) {
  for (const double p : {0.05, 0.5}) {
    const auto mask = lora_dropout_mask(1000, 1000, {p, 1234});
    const double kept = (mask > 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 1 - p, 4 * std::sqrt(p * (1 - p) / 1e6));  // four standard deviations
    EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.01);
    EXPECT_TRUE(at::equal(mask, lora_dropout_mask(1000, 1000, {p, 1234})));
    EXPECT_FALSE(at::equal(mask, lora_dropout_mask(1000, 1000, {p, 1235})));
  }
}

TEST(Lora, RefusesOtherTypesByName) {
  LoraFactors f{.a = at::zeros({2, 4}), .b = at::zeros({4, 2})};
  f.repack(at::kFloat);
  auto x = at::zeros({1, 4}, at::kHalf), y = at::zeros({1, 4}, at::kHalf);
  const LoraPart parts[] = {{0, 1, &f, {}, {}, {}}};
  try {
    lora_forward(x, parts, y);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "kernels: lora's x is Half, it must be bfloat16, float32 or float64");
  }
}

TEST(Lora, RefusesFactorsThatAreNotPackedForItsRows) {
  LoraFactors f{.a = at::zeros({2, 4}), .b = at::zeros({4, 2})};
  auto x = at::zeros({1, 4}, at::kBFloat16), y = at::zeros({1, 4}, at::kBFloat16);
  const LoraPart parts[] = {{0, 1, &f, {}, {}, {}}};
  const auto refusal = [&] {
    try {
      lora_forward(x, parts, y);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string text =
      "kernels: lora's factors are not packed for rows of BFloat16: repack() them";
  EXPECT_EQ(refusal(), text);
  f.repack(at::kFloat);
  EXPECT_EQ(refusal(), text);
  f.repack(at::kBFloat16);
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace twinkle::kernels
