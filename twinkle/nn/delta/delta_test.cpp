#include "twinkle/nn/delta/delta.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

constexpr kernels::DeltaShape kShape{
    .key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4};

GatedDelta drawn_weights(at::ScalarType type = at::kDouble) {
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(type); };
  return {.shape = kShape,
          .conv = draw({kShape.channels(), 1, 4}),
          .a_log = draw({2}),
          .dt_bias = draw({2}),
          .norm = draw({4})};
}

DeltaProjections drawn_inputs(int64_t tokens, at::ScalarType type = at::kDouble) {
  const auto draw = [&](int64_t width) { return at::randn({tokens, width}, at::kDouble).to(type); };
  return {draw(kShape.channels()), draw(8), draw(2), draw(2)};
}

struct Buffers {
  WeightGrad conv, a_log, dt_bias, norm;
  void enter(GatedDelta& w) {
    w.conv_grad = &conv, w.a_log_grad = &a_log, w.dt_bias_grad = &dt_bias, w.norm_grad = &norm;
  }
  std::vector<at::Tensor> sums() const { return {conv.sum, a_log.sum, dt_bias.sum, norm.sum}; }
};

// A chunk's end lies within the second sequence.
TEST(GatedDelta, GradientsEqualFiniteDifferences_slow) {
  at::manual_seed(3);
  const Rows rows = rows_of({2, 67}, {-1, -1}, {0, 0}, {1, 1});
  GatedDelta w = drawn_weights();
  DeltaProjections in = drawn_inputs(69);
  for (at::Tensor* x : {&in.qkv, &in.z, &in.a, &in.b}) x->requires_grad_();
  Buffers buffers;
  buffers.enter(w);
  const at::Tensor weights = at::randn({69, 8}, at::kDouble);
  const auto value = [&] { return (gated_delta(in, w, rows) * weights).sum(); };
  value().backward();
  const auto expect = [&](const at::Tensor& got, const at::Tensor& x, const char* name) {
    const at::Tensor slope = kernels::finite_difference(value, x);
    EXPECT_LT((got - slope).abs().max().item<double>(),
              1e-7 * (1 + slope.abs().max().item<double>()))
        << name;
  };
  expect(in.qkv.grad(), in.qkv.detach(), "qkv");
  expect(in.z.grad(), in.z.detach(), "z");
  expect(in.a.grad(), in.a.detach(), "a");
  expect(in.b.grad(), in.b.detach(), "b");
  expect(buffers.conv.sum, w.conv, "conv1d");
  expect(buffers.a_log.sum, w.a_log, "A_log");
  expect(buffers.dt_bias.sum, w.dt_bias, "dt_bias");
  expect(buffers.norm.sum, w.norm, "norm");
}

TEST(GatedDelta, WeightsSumsAreThoseOfTheLearningSequencesOneByOneAndInOrder) {
  at::manual_seed(4);
  GatedDelta w = drawn_weights(at::kFloat);
  const DeltaProjections in = drawn_inputs(140, at::kFloat);
  const at::Tensor weights = at::randn({140, 8});
  const auto backward = [&](const Rows& rows, int64_t begin, int64_t end) {
    DeltaProjections part = in;
    for (at::Tensor* x : {&part.qkv, &part.z, &part.a, &part.b}) {
      *x = x->slice(0, begin, end).clone().requires_grad_();
    }
    (gated_delta(part, w, rows) * weights.slice(0, begin, end)).sum().backward();
    return part.qkv.grad();
  };
  Buffers together, apart;
  together.enter(w);
  const at::Tensor dx = backward(rows_of({70, 20, 50}, {-1, -1, -1}, {0, 0, 0}, {1, 0, 1}), 0, 140);
  apart.enter(w);
  const at::Tensor first = backward(rows_of({70}, {-1}, {0}, {1}), 0, 70);
  backward(rows_of({50}, {-1}, {0}, {1}), 90, 140);
  EXPECT_TRUE(at::equal(dx.slice(0, 0, 70), first));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(together.sums()[i], apart.sums()[i])) << i;
}

TEST(GatedDelta, TheRowsMayGoBeforeTheBackwardPass) {
  at::manual_seed(5);
  GatedDelta w = drawn_weights();
  Buffers buffers;
  buffers.enter(w);
  DeltaProjections in = drawn_inputs(3);
  in.qkv.requires_grad_();
  at::Tensor out;
  {
    const Rows rows = rows_of({3}, {-1}, {0}, {1});
    out = gated_delta(in, w, rows);
  }
  out.sum().backward();
  EXPECT_TRUE(in.qkv.grad().defined() && buffers.conv.sum.defined());
}

TEST(GatedDelta, SamplingHasTheBitsOfTrainingHoweverTheSequenceIsCut) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const GatedDelta w = drawn_weights(type);
    const DeltaProjections in = drawn_inputs(131, type);
    const Rows rows = pack(std::vector<int64_t>{131});
    const at::Tensor trained = gated_delta(in, w, rows);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(gated_delta(in, w, rows), trained));
    for (int64_t cut = 1; cut < 131; ++cut) {
      const at::Tensor state =
          at::full({kernels::DeltaState::num_bytes(kShape, type)}, 255, at::kByte);
      const auto part = [&](int64_t begin, int64_t end) {
        const auto slice = [&](const at::Tensor& x) { return x.slice(0, begin, end); };
        const kernels::DeltaRun run{.row = 0,
                                    .count = end - begin,
                                    .first = begin,
                                    .state = reinterpret_cast<std::byte*>(state.data_ptr())};
        return gated_delta({slice(in.qkv), slice(in.z), slice(in.a), slice(in.b)}, w, {&run, 1});
      };
      const at::Tensor head = part(0, cut);
      ASSERT_TRUE(at::equal(at::cat({head, part(cut, 131)}), trained)) << cut;
    }
  }
}

TEST(GatedDelta, SavedBytesAreThoseOfItsTensors) {
  const GatedDelta w = drawn_weights(at::kFloat);
  const Rows rows = pack(std::vector<int64_t>{66, 4});
  const int64_t per_token = kShape.channels() + 2 * 8 + 2 * 2;
  EXPECT_EQ(w.saved_bytes(rows), 4 * (70 * per_token + 2 * 3 * 16)) << "one chunk's state, padded";
}

}  // namespace
}  // namespace twinkle::nn
