#include "twinkle/kernels/lora.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace twinkle::kernels {
namespace {

struct Case {
  at::ScalarType type;
  int64_t rank, inputs, outputs;
  double dropout;
};

class Lora : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    const Case c = GetParam();
    const auto type = c.type == at::kDouble ? at::kDouble : at::kFloat;
    f.a = at::randn({c.rank, c.inputs}, type);
    f.b = at::randn({c.outputs, c.rank}, type);
    f.scale = 0.75;
    f.repack();
    x = at::randn({40, c.inputs}, type).to(c.type);
    y = at::randn({40, c.outputs}, type).to(c.type);
    dy = at::randn({40, c.outputs}, type).to(c.type);
    dx = at::randn({40, c.inputs}, type).to(c.type);
    drop = {c.dropout, c.dropout > 0 ? 99u : 0u};
  }
  double tolerance() const { return GetParam().type == at::kBFloat16 ? 0.02 : 1e-4; }
  LoraFactors f;
  at::Tensor x, y, dy, dx;
  LoraDropout drop;
};

TEST_P(Lora, EqualsThePlainProductsForwardAndBackward) {
  const int64_t begin = 3, end = 36;
  const auto mask = lora_dropout_mask(end - begin, x.size(1), drop).to(f.a.scalar_type());
  const auto xs = x.slice(0, begin, end).to(f.a.scalar_type()) * mask;
  const auto dys = dy.slice(0, begin, end).to(f.a.scalar_type());
  auto want_y = y.clone(), want_dx = dx.clone();
  want_y.slice(0, begin, end) += (xs.mm(f.a.t()).mm(f.b.t()) * f.scale).to(x.scalar_type());
  const auto dh = dys.mm(f.b) * f.scale;
  want_dx.slice(0, begin, end) += (dh.mm(f.a) * mask).to(x.scalar_type());
  auto ga = at::ones_like(f.a), gb = at::ones_like(f.b);
  const auto want_ga = ga + dh.t().mm(xs), want_gb = gb + dys.t().mm(xs.mm(f.a.t())) * f.scale;

  const auto h = lora_forward(x, begin, end, f, drop, y);
  lora_backward(dy, x, h, begin, end, f, drop, dx, ga, gb);
  const auto close = [&](const at::Tensor& got, const at::Tensor& want) {
    const double scale = want.to(at::kDouble).abs().max().item<double>();
    return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>() / scale;
  };
  EXPECT_LT(close(y, want_y), tolerance());
  EXPECT_LT(close(dx, want_dx), tolerance());
  EXPECT_LT(close(ga, want_ga), 1e-4);
  EXPECT_LT(close(gb, want_gb), 1e-4);
}

TEST_P(Lora, GivesARowTheSameBitsAloneAndAmongOthersAndWithAnyThreads) {
  auto alone = y.clone(), packed = y.clone();
  const auto h = lora_forward(x, 5, 38, f, drop, packed);
  auto one = x.slice(0, 5, 38).contiguous(), one_y = y.slice(0, 5, 38).contiguous();
  at::set_num_threads(1);
  const auto h1 = lora_forward(one, 0, 33, f, drop, one_y);
  EXPECT_TRUE(at::equal(packed.slice(0, 5, 38), one_y));
  auto ga = at::zeros_like(f.a), gb = at::zeros_like(f.b), ga1 = ga.clone(), gb1 = gb.clone();
  auto dx1 = dx.slice(0, 5, 38).contiguous();
  lora_backward(dy.slice(0, 5, 38).contiguous(), one, h1, 0, 33, f, drop, dx1, ga1, gb1);
  at::set_num_threads(2);
  lora_backward(dy, x, h, 5, 38, f, drop, dx, ga, gb);
  EXPECT_TRUE(at::equal(ga, ga1));
  EXPECT_TRUE(at::equal(gb, gb1));
  EXPECT_TRUE(at::equal(dx.slice(0, 5, 38), dx1));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Lora,
    testing::Values(Case{at::kFloat, 8, 64, 48, 0}, Case{at::kFloat, 5, 37, 101, 0.1},
                    Case{at::kBFloat16, 16, 96, 64, 0}, Case{at::kBFloat16, 33, 70, 200, 0.3},
                    Case{at::kDouble, 3, 31, 17, 0.5}, Case{at::kFloat, 1, 16, 1, 0}));

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
  f.repack();
  auto x = at::zeros({1, 4}, at::kHalf), y = at::zeros({1, 4}, at::kHalf);
  EXPECT_ANY_THROW(lora_forward(x, 0, 1, f, {}, y));
}

}  // namespace
}  // namespace twinkle::kernels
