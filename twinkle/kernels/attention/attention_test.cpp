#include "twinkle/kernels/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

struct AttentionCase {
  at::ScalarType type = at::kFloat;
  int64_t heads = 4, key_heads = 2, dim = 32, window = 0;
  std::vector<int64_t> lengths;
  double softcap = 0;
};

std::vector<int64_t> ends(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> out{0};
  for (const int64_t length : lengths) out.push_back(out.back() + length);
  return out;
}

struct Input {
  at::Tensor q, k, v;
  std::vector<int64_t> cu_seqlens;
  AttentionOptions options;

  explicit Input(const AttentionCase& c)
      : cu_seqlens(ends(c.lengths)),
        options{.scale = 1 / std::sqrt(static_cast<double>(c.dim)),
                .window = c.window,
                .softcap = c.softcap} {
    at::manual_seed(7);
    const int64_t tokens = cu_seqlens.back();
    q = at::randn({tokens, c.heads, c.dim}, at::kDouble).to(c.type);
    k = at::randn({tokens, c.key_heads, c.dim}, at::kDouble).to(c.type);
    v = at::randn({tokens, c.key_heads, c.dim}, at::kDouble).to(c.type);
  }
};

// Softmax over a masked score matrix in float64, sequence by sequence.
at::Tensor naive(const Input& in, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  std::vector<at::Tensor> parts;
  const int64_t group = q.size(1) / k.size(1);
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    const auto part = [&](const at::Tensor& x, int64_t repeat) {
      return x.slice(0, in.cu_seqlens[s], in.cu_seqlens[s + 1])
          .transpose(0, 1)
          .repeat_interleave(repeat, 0);
    };
    const auto index = at::arange(in.cu_seqlens[s + 1] - in.cu_seqlens[s]);
    const auto ahead = index.unsqueeze(0) - index.unsqueeze(1);
    auto hidden = ahead > 0;
    if (in.options.window > 0) hidden = hidden.logical_or(ahead <= -in.options.window);
    auto scores = at::matmul(part(q, 1), part(k, group).transpose(1, 2)) * in.options.scale;
    const double cap = in.options.softcap;
    if (cap > 0) scores = cap * (scores / cap).tanh();
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    parts.push_back(at::matmul(scores.softmax(-1), part(v, group)).transpose(0, 1));
  }
  return at::cat(parts);
}

double worst(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

std::vector<AttentionCase> cases(at::ScalarType type) {
  return {
      {.type = type, .lengths = {1}},
      {.type = type, .lengths = {5, 64, 65, 1, 200}},
      {.type = type, .heads = 9, .key_heads = 3, .dim = 64, .lengths = {130, 33}},
      {.type = type, .heads = 16, .key_heads = 8, .dim = 128, .lengths = {97}},
      {.type = type, .heads = 2, .key_heads = 2, .dim = 40, .lengths = {70, 70}},
      {.type = type, .heads = 7, .key_heads = 1, .dim = 20, .window = 1, .lengths = {90}},
      {.type = type, .heads = 6, .key_heads = 2, .dim = 64, .window = 50, .lengths = {300, 20}},
      {.type = type, .heads = 4, .key_heads = 4, .dim = 16, .window = 64, .lengths = {257}},
      {.type = type, .lengths = {1, 130}, .softcap = 50},
      {.type = type, .dim = 40, .window = 50, .lengths = {200, 7}, .softcap = 0.7},
  };
}

class AttentionOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const {
    return GetParam() == at::kDouble ? 1e-12 : GetParam() == at::kFloat ? 3e-6 : 2e-2;
  }
};

TEST_P(AttentionOfType, forward_equals_the_naive_formula) {
  for (const AttentionCase& c : cases(GetParam())) {
    const Input in(c);
    const auto truth = naive(in, in.q.to(at::kDouble), in.k.to(at::kDouble), in.v.to(at::kDouble));
    for (const Simd* simd : supported_simd()) {
      const auto result = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd);
      EXPECT_LT(worst(result.out, truth), tolerance()) << simd->name << " dim " << c.dim;
    }
  }
}

TEST_P(AttentionOfType, log_sum_exp_is_that_of_the_visible_scores) {
  const Input in({.type = GetParam(), .heads = 2, .key_heads = 2, .window = 3, .lengths = {9}});
  const auto lse = attention(in.q, in.k, in.v, in.cu_seqlens, in.options).lse;
  const auto q = in.q.to(at::kDouble), k = in.k.to(at::kDouble);
  const auto scores = (q.select(0, 8) * k.slice(0, 6, 9)).sum(-1) * in.options.scale;
  EXPECT_LT(worst(lse[8], scores.logsumexp(0)), 1e-5);
}

TEST_P(AttentionOfType, backward_equals_the_derivative_of_the_naive_formula) {
  for (const AttentionCase& c : cases(GetParam())) {
    const Input in(c);
    const auto q = in.q.to(at::kDouble).requires_grad_(), k = in.k.to(at::kDouble).requires_grad_();
    const auto v = in.v.to(at::kDouble).requires_grad_();
    const auto grad = at::randn(in.q.sizes(), at::kDouble).to(c.type);
    naive(in, q, k, v).backward(grad.to(at::kDouble));
    for (const Simd* simd : supported_simd()) {
      const auto forward = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd);
      const auto grads = attention_backward({grad, in.q, in.k, in.v, forward}, in.cu_seqlens,
                                            in.options, {}, *simd);
      const double limit = 10 * tolerance();
      EXPECT_LT(worst(grads.q, q.grad()), limit) << simd->name << " dim " << c.dim;
      EXPECT_LT(worst(grads.k, k.grad()), limit) << simd->name << " dim " << c.dim;
      EXPECT_LT(worst(grads.v, v.grad()), limit) << simd->name << " dim " << c.dim;
    }
  }
}

TEST_P(AttentionOfType, a_sequence_has_the_same_bits_alone_and_packed) {
  for (const Simd* simd : supported_simd()) {
    const Input in(
        {.type = GetParam(), .heads = 9, .key_heads = 3, .dim = 64, .lengths = {37, 150, 3, 64}});
    const auto grad = at::randn(in.q.sizes(), in.q.options());
    const auto all = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd);
    const auto grads =
        attention_backward({grad, in.q, in.k, in.v, all}, in.cu_seqlens, in.options, {}, *simd);
    for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
      const int64_t begin = in.cu_seqlens[s], end = in.cu_seqlens[s + 1];
      const auto part = [&](const at::Tensor& x) { return x.slice(0, begin, end); };
      const std::vector<int64_t> alone{0, end - begin};
      const auto one = attention(part(in.q), part(in.k), part(in.v), alone, in.options, *simd);
      EXPECT_TRUE(at::equal(one.out, part(all.out)) && at::equal(one.lse, part(all.lse)));
      const auto own = attention_backward({part(grad), part(in.q), part(in.k), part(in.v), one},
                                          alone, in.options, {}, *simd);
      EXPECT_TRUE(at::equal(own.q, part(grads.q)) && at::equal(own.k, part(grads.k)) &&
                  at::equal(own.v, part(grads.v)));
    }
  }
}

TEST_P(AttentionOfType, the_number_of_threads_does_not_change_a_bit) {
  const Input in({.type = GetParam(), .lengths = {200, 64, 9}});
  const auto grad = at::randn(in.q.sizes(), in.q.options());
  const int threads = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> runs;
  for (const int count : {1, 2, 5}) {
    at::set_num_threads(count);
    const auto all = attention(in.q, in.k, in.v, in.cu_seqlens, in.options);
    const auto g = attention_backward({grad, in.q, in.k, in.v, all}, in.cu_seqlens, in.options);
    runs.push_back({all.out, all.lse, g.q, g.k, g.v});
  }
  at::set_num_threads(threads);
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(at::equal(runs[0][i], runs[1][i]) && at::equal(runs[0][i], runs[2][i])) << i;
  }
}

// Sequences in pages that are handed out backwards and shared out in turn; free ones hold NaN.
struct Cache {
  PagedKeys pages;
  at::Tensor tables;

  explicit Cache(const Input& in) {
    const int64_t sequences = in.cu_seqlens.size() - 1;
    int64_t most = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      most = std::max(most, (in.cu_seqlens[s + 1] - in.cu_seqlens[s] + 63) / 64);
    }
    pages = make_pages(sequences * most + 1, in.k.size(1), in.k.size(2), in.k.scalar_type());
    pages.k.fill_(std::numeric_limits<double>::quiet_NaN());
    pages.v.fill_(std::numeric_limits<double>::quiet_NaN());
    tables = (sequences * most - at::arange(sequences * most)).to(at::kInt).view({most, sequences});
    tables = tables.t().contiguous();
  }

  // Writes and attends `rows` of the packed input.
  at::Tensor run(const Input& in, const at::Tensor& sequences, const at::Tensor& positions,
                 const Simd& simd) {
    const PagedRows rows{tables, sequences, positions};
    const auto starts = at::tensor(in.cu_seqlens, at::kLong);
    const auto index = starts.index_select(0, sequences) + positions;
    write_pages(pages, in.k.index_select(0, index), in.v.index_select(0, index), rows);
    return attention_paged(in.q.index_select(0, index), pages, rows, in.options, simd);
  }
};

TEST_P(AttentionOfType, paged_prefill_in_chunks_and_decode_have_the_bits_of_the_packed_forward) {
  for (const auto& [window, softcap] :
       {std::pair{0, 0.0}, std::pair{40, 0.0}, std::pair{0, 0.7}, std::pair{40, 2.0}}) {
    for (const Simd* simd : supported_simd()) {
      const Input in({.type = GetParam(),
                      .heads = 6,
                      .key_heads = 2,
                      .dim = 64,
                      .window = window,
                      .lengths = {150, 131, 140},
                      .softcap = softcap});
      const auto truth = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd).out;
      Cache cache(in);
      const auto expect_row = [&](const at::Tensor& got, int64_t s, int64_t from, int64_t to) {
        EXPECT_TRUE(at::equal(got, truth.slice(0, in.cu_seqlens[s] + from, in.cu_seqlens[s] + to)))
            << simd->name << " window " << window << " sequence " << s << " from " << from;
      };
      const std::vector<int64_t> chunks{0, 1, 60, 127};
      for (size_t c = 0; c + 1 < chunks.size(); ++c) {
        for (int64_t s = 0; s < 3; ++s) {
          const auto positions = at::arange(chunks[c], chunks[c + 1]);
          expect_row(cache.run(in, at::full_like(positions, s), positions, *simd), s, chunks[c],
                     chunks[c + 1]);
        }
      }
      for (int64_t t = chunks.back(); t < 131; ++t) {
        const auto got = cache.run(in, at::arange(3), at::full({3}, t, at::kLong), *simd);
        for (int64_t s = 0; s < 3; ++s) expect_row(got.slice(0, s, s + 1), s, t, t + 1);
      }
    }
  }
}

TEST_P(AttentionOfType, pages_without_keys_hold_values_that_are_the_keys) {
  for (const Simd* simd : supported_simd()) {
    Input in({.type = GetParam(), .heads = 5, .key_heads = 1, .dim = 40, .lengths = {130, 70}});
    in.v = in.k;
    const auto truth = attention(in.q, in.k, in.v, in.cu_seqlens, in.options, *simd).out;
    Cache cache(in);
    cache.pages.k = at::Tensor();
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t begin = in.cu_seqlens[s], length = in.cu_seqlens[s + 1] - begin;
      for (int64_t t = 0; t < length; t = t == 0 ? 65 : t + 1) {
        const auto positions = t == 0 ? at::arange(65) : at::full({1}, t, at::kLong);
        const auto got = cache.run(in, at::full_like(positions, s), positions, *simd);
        EXPECT_TRUE(at::equal(got, truth.slice(0, begin + t, begin + t + positions.numel())))
            << simd->name << " sequence " << s << " from " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(types, AttentionOfType,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Attention, mistakes_are_named) {
  const Input in({.lengths = {5}});
  const auto run = [&](const at::Tensor& q, const at::Tensor& v, std::vector<int64_t> cu_seqlens,
                       int64_t window) { attention(q, in.k, v, cu_seqlens, {.window = window}); };
  expect_error("kernels: attention's q is Float [5, 3, 32]",
               [&] { run(in.q.slice(1, 0, 3), in.v, {0, 5}, 0); });
  expect_error("kernels: attention's v is Double",
               [&] { run(in.q, in.v.to(at::kDouble), {0, 5}, 0); });
  expect_error("kernels: attention's window is -1", [&] { run(in.q, in.v, {0, 5}, -1); });
  expect_error("cu_seqlens must rise from 0 to 5", [&] { run(in.q, in.v, {0, 4}, 0); });
  expect_error("kernels: attention's softcap is -1",
               [&] { attention(in.q, in.k, in.v, in.cu_seqlens, {.softcap = -1}); });
  expect_error("kernels: attention's gradient is Float [5, 2, 32]", [&] {
    attention_backward({in.k, in.q, in.k, in.v, {}}, in.cu_seqlens, in.options);
  });
  const auto half = in.q.to(at::kHalf);
  expect_error("kernels: attention's q is Half",
               [&] { attention(half, half, half, in.cu_seqlens, in.options); });
}

TEST(AttentionPaged, mistakes_are_named_and_write_nothing) {
  auto pages = make_pages(2, 2, 32, at::kFloat);
  const auto x = at::randn({1, 2, 32});
  const auto rows = [](int32_t page, int64_t sequence, int64_t position) {
    return PagedRows{at::full({1, 1}, page, at::kInt), at::full({1}, sequence, at::kLong),
                     at::full({1}, position, at::kLong)};
  };
  expect_error("is position 64 of sequence 0", [&] { write_pages(pages, x, x, rows(0, 0, 64)); });
  expect_error("is position 0 of sequence 1", [&] { write_pages(pages, x, x, rows(0, 1, 0)); });
  expect_error("is 2, the cache has 2", [&] { write_pages(pages, x, x, rows(2, 0, 0)); });
  expect_error("k has 4 heads, the pages have 2", [&] {
    write_pages(pages, at::randn({1, 4, 32}), at::randn({1, 4, 32}), rows(0, 0, 0));
  });
  expect_error("kernels: v is", [&] { write_pages(pages, x, x.slice(2, 0, 16), rows(0, 0, 0)); });
  expect_error("k is Double",
               [&] { write_pages(pages, x.to(at::kDouble), x.to(at::kDouble), rows(0, 0, 0)); });
  expect_error("q is Float [1, 3, 32]",
               [&] { attention_paged(at::randn({1, 3, 32}), pages, rows(0, 0, 0), {}); });
  expect_error("window is -2", [&] { attention_paged(x, pages, rows(0, 0, 0), {.window = -2}); });
  expect_error("softcap is -2", [&] { attention_paged(x, pages, rows(0, 0, 0), {.softcap = -2}); });
  auto wrong = rows(0, 0, 0);
  wrong.positions = at::zeros({2}, at::kLong);
  expect_error("1 sequences and 2 positions for 1 rows",
               [&] { attention_paged(x, pages, wrong, {}); });
  wrong.block_tables = wrong.block_tables.to(at::kLong);
  expect_error("block_tables are Long", [&] { attention_paged(x, pages, wrong, {}); });
  PagedKeys swapped{pages.v, pages.k};
  expect_error("as make_pages makes them", [&] { attention_paged(x, swapped, rows(0, 0, 0), {}); });
  EXPECT_EQ(pages.k.count_nonzero().item<int64_t>() + pages.v.count_nonzero().item<int64_t>(), 0);
}

}  // namespace
}  // namespace twinkle::kernels
