#include "twinkle/nn/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

TEST(Attention, gradients_equal_finite_differences) {
  const Rows rows = pack(std::vector<int64_t>{4, 1, 3});
  for (const auto& [window, softcap] : {std::pair{0, 0.0}, std::pair{2, 0.0}, std::pair{2, 0.6}}) {
    const auto q = kernels::leaf({8, 4, 6}), k = kernels::leaf({8, 2, 6}),
               v = kernels::leaf({8, 2, 6});
    kernels::expect_gradients(
        [&, window = window, softcap = softcap] {
          return attention(q, k, v, rows, {.scale = 0.5, .window = window, .softcap = softcap});
        },
        {q, k, v});
  }
}

TEST(Attention, gradients_with_sinks_and_theirs_equal_finite_differences) {
  Rows rows = pack(std::vector<int64_t>{4, 1, 3});
  for (Segment& segment : rows.segments) segment.learn = true;
  for (const int64_t window : {0, 2}) {
    const auto q = kernels::leaf({8, 4, 6}), k = kernels::leaf({8, 2, 6}),
               v = kernels::leaf({8, 2, 6}), sinks = at::randn({4}, at::kDouble);
    const AttentionOptions options{.scale = 0.5, .window = window, .sinks = sinks};
    kernels::expect_gradients([&] { return attention(q, k, v, rows, options); }, {q, k, v});
    WeightGrad sum;
    const auto weights = at::randn({8, 4, 6}, at::kDouble);
    const auto value = [&] { return (attention(q, k, v, rows, options, &sum) * weights).sum(); };
    value().backward();
    const auto slope = kernels::finite_difference(value, sinks);
    EXPECT_TRUE(at::allclose(sum.sum, slope, 1e-6, 1e-8)) << sum.sum << slope;
  }
}

TEST(Attention, sinks_learn_of_the_sequences_that_learn_alone) {
  const auto q = at::randn({8, 4, 6}), k = at::randn({8, 2, 6}), v = at::randn({8, 2, 6}),
             g = at::randn({8, 4, 6});
  const AttentionOptions options{.scale = 0.5, .sinks = at::randn({4})};
  const auto learned = [&](int64_t begin, int64_t end, const Rows& rows) {
    WeightGrad sum;
    const auto part = [&](const at::Tensor& x) { return x.slice(0, begin, end).contiguous(); };
    const at::Tensor in = part(q).requires_grad_();
    attention(in, part(k), part(v), rows, options, &sum).backward(part(g));
    return sum.sum;
  };
  const auto among = learned(0, 8, rows_of({3, 4, 1}, {-1, -1, -1}, {0, 0, 0}, {0, 1, 0}));
  EXPECT_TRUE(at::equal(among, learned(3, 7, rows_of({4}, {-1}, {0}, {1}))));
}

TEST(Attention, the_backward_of_sinks_that_learn_makes_no_wide_copy_of_the_output) {
  constexpr int64_t kTokens = 1024, kHeads = 16, kDim = 32;
  const auto draw = [](int64_t heads) {
    return at::randn({kTokens, heads, kDim}).to(at::kBFloat16).requires_grad_();
  };
  const at::Tensor q = draw(kHeads), k = draw(1), v = draw(1), g = draw(kHeads).detach();
  const Rows rows = rows_of({kTokens}, {-1}, {0}, {1});
  const AttentionOptions options{.scale = 0.2, .sinks = at::randn({kHeads}).to(at::kBFloat16)};
  WeightGrad sum;
  sum.buffer(options.sinks);
  const auto peak = [&](WeightGrad* grad) {
    const at::Tensor y = attention(q, k, v, rows, options, grad);
    const kernels::AllocationMeter meter;
    torch::autograd::grad({y}, {q, k, v}, {g});
    return meter.peak();
  };
  peak(nullptr);  // memory that is kept after a first time
  const int64_t wide = kTokens * kHeads * kDim * 4;
  EXPECT_LT(peak(&sum) - peak(nullptr), wide / 4);
}

// One sequence by ATen's own attention, heads repeated.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale) {
  const auto heads = [&](const at::Tensor& x) {
    return x.repeat_interleave(q.size(1) / x.size(1), 1).transpose(0, 1).unsqueeze(0);
  };
  return at::scaled_dot_product_attention(heads(q), heads(k), heads(v), {}, 0.0, true, scale)[0]
      .transpose(0, 1);
}

TEST(Attention, equals_atens_in_float32_and_is_no_farther_from_the_truth_in_bf16) {
  const Rows rows = pack(std::vector<int64_t>{100});
  const auto q = at::randn({100, 6, 32}), k = at::randn({100, 3, 32}), v = at::randn({100, 3, 32});
  const AttentionOptions options{.scale = 0.2};
  EXPECT_TRUE(
      at::allclose(attention(q, k, v, rows, options), plain_attention(q, k, v, 0.2), 1e-4, 1e-6));
  const auto b = at::kBFloat16;
  const auto round = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  const auto truth = plain_attention(round(q), round(k), round(v), 0.2);
  const auto ours = attention(q.to(b), k.to(b), v.to(b), rows, options);
  // ATen's own kernel for bf16 asks the processor, not ATEN_CPU_CAPABILITY, whether there is
  // AVX-512, and throws where the two differ (torch 2.11, avx512_fp16).
  // There the truth, rounded once, is the measure, but for ties of float32 sums.
  const bool has_own = at::get_cpu_capability() != "AVX2" || !__builtin_cpu_supports("avx512fp16");
  const auto theirs = has_own ? plain_attention(q.to(b), k.to(b), v.to(b), 0.2) : truth.to(b);
  const double ties = has_own ? 1 : 1.0001;
  EXPECT_LE((ours - truth).norm().item<double>(), ties * (theirs - truth).norm().item<double>());
}

TEST(Attention, frozen_inputs_get_no_gradient) {
  const Rows rows = pack(std::vector<int64_t>{5});
  const auto q = at::randn({5, 2, 8}), k = at::randn({5, 2, 8});
  const auto v = at::randn({5, 2, 8}).requires_grad_();
  attention(q, k, v, rows, {}).sum().backward();
  EXPECT_TRUE(v.grad().defined() && !q.grad().defined() && !k.grad().defined());
}

}  // namespace
}  // namespace twinkle::nn
