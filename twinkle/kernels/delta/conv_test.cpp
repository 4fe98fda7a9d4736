#include "twinkle/kernels/delta/conv.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kNumChannels = 270;  // two pieces of work, the second not whole vectors
const std::array<int64_t, 4> kCu{0, 3, 4, 20};

std::vector<ConvRun> whole(std::span<const int64_t> cu) {
  std::vector<ConvRun> runs;
  for (size_t s = 0; s + 1 < cu.size(); ++s) {
    runs.push_back({.row = cu[s], .count = cu[s + 1] - cu[s]});
  }
  return runs;
}

at::Tensor plain_conv(const at::Tensor& x, const at::Tensor& weight, std::span<const int64_t> cu) {
  std::vector<at::Tensor> out;
  for (size_t s = 0; s + 1 < cu.size(); ++s) {
    const at::Tensor mine = x.slice(0, cu[s], cu[s + 1]).t().unsqueeze(0);
    const at::Tensor y =
        at::conv1d(at::constant_pad_nd(mine, {3, 0}), weight, at::Tensor(), at::IntArrayRef{1},
                   at::IntArrayRef{0}, at::IntArrayRef{1}, weight.size(0));
    out.push_back(at::silu(y[0].t()));
  }
  return at::cat(out);
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight * at::silu(gate);
}

class AroundDelta : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(8); }
  at::Tensor random(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::kDouble).to(GetParam());
  }
  at::Tensor sum_like(const at::Tensor& weight) const {
    return at::zeros(weight.sizes(), GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  }
  static at::Tensor leaf(const at::Tensor& x) {
    return x.to(at::kDouble).detach().requires_grad_();
  }
  void expect_close(const at::Tensor& got, const at::Tensor& truth) const {
    const double limit = GetParam() == at::kDouble  ? 1e-13
                         : GetParam() == at::kFloat ? 2e-6
                                                    : 1.0 / 128;
    const auto error = (got.to(at::kDouble) - truth.detach()).abs() / (1 + truth.detach().abs());
    EXPECT_LT(error.max().item<double>(), limit);
  }
};

TEST_P(AroundDelta, TheConvolutionIsThePlainOneAndSoAreItsGradients) {
  const at::Tensor x = random({20, kNumChannels}), weight = random({kNumChannels, 1, 4});
  const at::Tensor grad = random(x.sizes());
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    const at::Tensor xs = leaf(x), ws = leaf(weight);
    const at::Tensor y = plain_conv(xs, ws, kCu);
    y.backward(grad.to(at::kDouble));
    expect_close(conv_silu(x, weight, whole(kCu), *simd), y);
    at::Tensor sum = sum_like(weight);
    expect_close(conv_silu_backward(grad, x, weight, kCu, {true, true, true}, &sum, *simd),
                 xs.grad());
    expect_close(sum, ws.grad());
  }
}

TEST_P(AroundDelta, TheConvolutionCutAnywhereHasTheSameBits) {
  const at::Tensor x = random({20, kNumChannels}), weight = random({kNumChannels, 1, 4});
  const at::Tensor y = conv_silu(x, weight, whole(std::array<int64_t, 2>{0, 20}));
  for (int64_t cut = 1; cut < 20; ++cut) {
    at::Tensor past = at::full({3, kNumChannels}, std::nan(""), x.options());
    const auto part = [&](int64_t begin, int64_t end) {
      const ConvRun run{.row = 0, .count = end - begin, .first = begin, .past = past.data_ptr()};
      return conv_silu(x.slice(0, begin, end), weight, {&run, 1});
    };
    const at::Tensor head = part(0, cut);
    ASSERT_TRUE(at::equal(at::cat({head, part(cut, 20)}), y)) << cut;
    ASSERT_TRUE(at::equal(past, x.slice(0, 17)));
  }
}

TEST_P(AroundDelta, OnlySequencesThatLearnAddToTheWeightsInTheirOrder) {
  const at::Tensor x = random({20, kNumChannels}), weight = random({kNumChannels, 1, 4});
  const at::Tensor grad = random(x.sizes());
  at::Tensor sum = sum_like(weight), expected = sum_like(weight);
  conv_silu_backward(grad, x, weight, kCu, {true, false, true}, &sum);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {4, 20}}) {
    conv_silu_backward(grad.slice(0, begin, end), x.slice(0, begin, end), weight,
                       std::array<int64_t, 2>{0, end - begin}, {true}, &expected);
  }
  EXPECT_TRUE(at::equal(sum, expected));
}

TEST_P(AroundDelta, TheGatedNormIsThePlainOneAndSoAreItsGradients) {
  const at::Tensor x = random({20, 4, 19}), gate = random({20, 4, 19}), weight = random({19});
  const at::Tensor grad = random(x.sizes());
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    const at::Tensor xs = leaf(x), gs = leaf(gate), ws = leaf(weight);
    const at::Tensor y = plain_norm(xs, gs, ws);
    y.backward(grad.to(at::kDouble));
    expect_close(gated_rms_norm(x, gate, weight, 1e-5, *simd), y);
    at::Tensor sum = sum_like(weight);
    const auto grads =
        gated_rms_norm_backward(grad, x, gate, weight, 1e-5, kCu, {true, true, true}, &sum, *simd);
    expect_close(grads.x, xs.grad());
    expect_close(grads.gate, gs.grad());
    expect_close(sum, ws.grad());
  }
}

TEST_P(AroundDelta, ARowOfTheGatedNormHasTheSameBitsAlone) {
  const at::Tensor x = random({20, 4, 19}), gate = random({20, 4, 19}), weight = random({19});
  const at::Tensor y = gated_rms_norm(x, gate, weight, 1e-5), grad = random(x.sizes());
  at::Tensor sum = sum_like(weight), expected = sum_like(weight);
  const auto all =
      gated_rms_norm_backward(grad, x, gate, weight, 1e-5, kCu, {true, false, true}, &sum);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {4, 20}}) {
    const auto mine = [&](const at::Tensor& t) { return t.slice(0, begin, end); };
    EXPECT_TRUE(at::equal(gated_rms_norm(mine(x), mine(gate), weight, 1e-5), mine(y)));
    const auto part =
        gated_rms_norm_backward(mine(grad), mine(x), mine(gate), weight, 1e-5,
                                std::array<int64_t, 2>{0, end - begin}, {true}, &expected);
    EXPECT_TRUE(at::equal(part.x, mine(all.x)) && at::equal(part.gate, mine(all.gate)));
  }
  EXPECT_TRUE(at::equal(sum, expected));
}

INSTANTIATE_TEST_SUITE_P(Types, AroundDelta,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(ConvSilu, MistakesAreNamed) {
  const at::Tensor x = at::ones({4, 6}), weight = at::ones({6, 1, 4});
  const auto runs = whole(std::array<int64_t, 2>{0, 4});
  EXPECT_THROW(conv_silu(x, at::ones({6, 1, 3}), runs), Error);
  EXPECT_THROW(conv_silu(x, at::ones({5, 1, 4}), runs), Error);
  EXPECT_THROW(conv_silu(x, weight, whole(std::array<int64_t, 2>{0, 5})), Error);
  EXPECT_THROW(conv_silu_backward(x, x, weight, std::array<int64_t, 2>{0, 3}, {true}, nullptr),
               Error);
}

TEST(GatedRmsNorm, MistakesAreNamed) {
  const at::Tensor x = at::ones({4, 6});
  EXPECT_THROW(gated_rms_norm(x, at::ones({4, 5}), at::ones({6}), 1e-6), Error);
  EXPECT_THROW(gated_rms_norm(x, x, at::ones({5}), 1e-6), Error);
  EXPECT_THROW(gated_rms_norm(x, x.to(at::kDouble), at::ones({6}), 1e-6), Error);
}

}  // namespace
}  // namespace twinkle::kernels
