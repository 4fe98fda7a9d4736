// Attention whose heads have sinks: against one more column of scores, spelled out in float64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/attention/attention.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kHeads = 6, kKeyHeads = 2, kDim = 40;

struct SinksInput {
  at::Tensor q, k, v;
  std::vector<int64_t> cu_seqlens{0, 130, 133};
  AttentionOptions options;

  SinksInput(at::ScalarType type, int64_t window) {
    at::manual_seed(7);
    q = at::randn({133, kHeads, kDim}, at::kDouble).to(type);
    k = at::randn({133, kKeyHeads, kDim}, at::kDouble).to(type);
    v = at::randn({133, kKeyHeads, kDim}, at::kDouble).to(type);
    options = {.scale = 0.15, .window = window, .sinks = at::randn({kHeads}, at::kDouble).to(type)};
  }
};

struct Truth {
  at::Tensor out, lse;
};

Truth spelled_out(const SinksInput& in, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v) {
  std::vector<at::Tensor> outs, sums;
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    const int64_t begin = in.cu_seqlens[s], length = in.cu_seqlens[s + 1] - begin;
    const auto heads = [&](const at::Tensor& x) {
      return x.narrow(0, begin, length).transpose(0, 1).repeat_interleave(kHeads / x.size(1), 0);
    };
    const auto index = at::arange(length);
    const auto ahead = index.unsqueeze(0) - index.unsqueeze(1);
    auto hidden = ahead > 0;
    if (in.options.window > 0) hidden = hidden.logical_or(ahead <= -in.options.window);
    const auto seen = (at::matmul(heads(q), heads(k).transpose(1, 2)) * in.options.scale)
                          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const auto sink = in.options.sinks.to(at::kDouble).view({-1, 1, 1}).expand({-1, length, 1});
    const auto scores = at::cat({seen, sink}, -1);
    outs.push_back(at::matmul(scores.softmax(-1).narrow(-1, 0, length), heads(v)).transpose(0, 1));
    sums.push_back(scores.logsumexp(-1).t());
  }
  return {at::cat(outs), at::cat(sums)};
}

double worst_of_sinks(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

class SinksOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const {
    return GetParam() == at::kDouble ? 1e-12 : GetParam() == at::kFloat ? 3e-6 : 2e-2;
  }
};

TEST_P(SinksOfType, results_and_derivatives_equal_those_of_one_more_score) {
  for (const int64_t window : {0, 50}) {
    const SinksInput in(GetParam(), window);
    const auto q = in.q.to(at::kDouble).requires_grad_(), k = in.k.to(at::kDouble).requires_grad_();
    const auto v = in.v.to(at::kDouble).requires_grad_();
    const Truth want = spelled_out(in, q, k, v);
    const auto grad = at::randn(in.q.sizes(), at::kDouble).to(GetParam());
    want.out.backward(grad.to(at::kDouble));
    for (const Simd* simd : supported_simd()) {
      const auto got = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd);
      EXPECT_LT(worst_of_sinks(got.out, want.out), tolerance()) << simd->name;
      EXPECT_LT(worst_of_sinks(got.lse, want.lse), 1e-5) << simd->name;
      const auto grads =
          attention_backward({grad, in.q, in.k, in.v, got}, in.cu_seqlens, in.options, {}, *simd);
      EXPECT_LT(worst_of_sinks(grads.q, q.grad()), 10 * tolerance()) << simd->name;
      EXPECT_LT(worst_of_sinks(grads.k, k.grad()), 10 * tolerance()) << simd->name;
      EXPECT_LT(worst_of_sinks(grads.v, v.grad()), 10 * tolerance()) << simd->name;
    }
  }
}

TEST_P(SinksOfType, pages_and_sequences_alone_have_the_bits_of_the_packed_forward) {
  for (const int64_t window : {0, 50}) {
    const SinksInput in(GetParam(), window);
    const auto whole = attention(in.q, in.k, in.v, in.cu_seqlens, in.options).out;
    PagedKeys pages = make_pages(3, kKeyHeads, kDim, GetParam());
    const auto tables = at::tensor({2, 0, 1}, at::kInt).view({1, 3});
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {1, 70}, {70, 128}, {128, 129}, {129, 130}}) {
      const auto part = [&, begin = begin, end = end](const at::Tensor& x) {
        return x.slice(0, begin, end);
      };
      const PagedRows rows{tables, at::zeros({end - begin}, at::kLong), at::arange(begin, end)};
      write_pages(pages, part(in.k), part(in.v), rows);
      EXPECT_TRUE(at::equal(attention_paged(part(in.q), pages, rows, in.options), part(whole)));
    }
    const auto last = [](const at::Tensor& x) { return x.narrow(0, 130, 3); };
    const std::vector<int64_t> alone{0, 3};
    EXPECT_TRUE(at::equal(attention(last(in.q), last(in.k), last(in.v), alone, in.options).out,
                          last(whole)));
  }
}

INSTANTIATE_TEST_SUITE_P(types, SinksOfType,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Sinks, far_above_all_scores_they_take_everything_and_far_below_nothing) {
  SinksInput in(at::kFloat, 0);
  const auto run = [&](double sink) {
    in.options.sinks = at::full({kHeads}, sink, at::kFloat);
    return attention(in.q, in.k, in.v, in.cu_seqlens, in.options);
  };
  const auto above = run(1e4), below = run(-1e4);
  EXPECT_EQ(above.out.abs().max().item<float>(), 0);
  EXPECT_EQ(above.lse.min().item<float>(), 1e4f);
  in.options.sinks = at::Tensor();
  const auto without = attention(in.q, in.k, in.v, in.cu_seqlens, in.options);
  EXPECT_TRUE(at::equal(below.out, without.out) && at::equal(below.lse, without.lse));
}

TEST(Sinks, mistakes_are_named) {
  SinksInput in(at::kFloat, 0);
  in.options.sinks = at::zeros({4});
  expect_error(
      "kernels: attention's sinks are Float [4], they must be one number for each of q's "
      "6 heads",
      [&] { attention(in.q, in.k, in.v, in.cu_seqlens, in.options); });
  const PagedRows rows{at::zeros({1, 1}, at::kInt), at::zeros({1}, at::kLong),
                       at::zeros({1}, at::kLong)};
  const PagedKeys pages = make_pages(1, kKeyHeads, kDim, at::kFloat);
  expect_error("kernels: attention's sinks are Float [4]",
               [&] { attention_paged(in.q.narrow(0, 0, 1), pages, rows, in.options); });
}

}  // namespace
}  // namespace twinkle::kernels
