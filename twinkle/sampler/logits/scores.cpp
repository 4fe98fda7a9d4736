#include "twinkle/sampler/logits/scores.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "twinkle/kernels/simd/team.h"
#include "twinkle/nn/head/head.h"

namespace twinkle::sampler {
namespace {

constexpr int64_t kRows = 128;  // rows whose logits exist at a time

}  // namespace

TopLogprobs likeliest(const at::Tensor& logits, int64_t row, int64_t k, float temperature,
                      const kernels::RowStats& stats) {
  if (k == 0 || std::isnan(stats.logprob)) return {};
  const at::Tensor wide = logits.select(0, row).to(at::kFloat);
  const float* x = wide.const_data_ptr<float>();
  const auto vocab = static_cast<int32_t>(wide.size(0));
  const auto before = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(k, vocab)));
  std::iota(ids.begin(), ids.end(), 0);
  std::make_heap(ids.begin(), ids.end(), before);  // the last of them is in front
  for (auto id = static_cast<int32_t>(ids.size()); id < vocab; ++id) {
    if (x[id] <= x[ids.front()]) continue;  // the lower id of equals was there before
    std::pop_heap(ids.begin(), ids.end(), before);
    ids.back() = id;
    std::push_heap(ids.begin(), ids.end(), before);
  }
  std::sort_heap(ids.begin(), ids.end(), before);
  TopLogprobs out;
  for (const int32_t id : ids) {
    out.push_back(
        {id, static_cast<float>(kernels::softmax_logprob(logits, row, id, temperature, stats))});
  }
  return out;
}

void score_tokens(const at::Tensor& hidden, const HeadOf& of, std::span<const int32_t> ids,
                  const ScoreOptions& options, PromptScores& out) {
  const at::NoGradGuard no_grad;
  const int64_t k = options.k;
  const int64_t n = std::ssize(ids);
  for (int64_t begin = 0; begin < n; begin += kRows) {
    const int64_t count = std::min(kRows, n - begin);
    const at::Tensor logits =
        nn::sampling_logits(hidden.narrow(0, begin, count), of.head,
                            {.cu_seqlens = {0, count}, .segments = {{.slot = of.slot}}});
    const auto targets = ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    std::vector<kernels::RowStats> stats(static_cast<size_t>(count));
    const std::vector<float> temperatures(stats.size(), options.temperature);
    kernels::softmax_stats(logits, targets, temperatures, false, stats);
    const at::Tensor host = k > 0 ? logits.cpu() : logits;
    const size_t first = out.logprobs.size();
    out.logprobs.resize(first + static_cast<size_t>(count));
    if (k > 0) out.top_logprobs.resize(out.logprobs.size());
    kernels::parallel_for(0, count, 1, [&](int64_t lo, int64_t hi) {
      for (int64_t r = lo; r < hi; ++r) {
        const size_t at = first + static_cast<size_t>(r);
        const kernels::RowStats& row = stats[static_cast<size_t>(r)];
        out.logprobs[at] = static_cast<float>(row.logprob);
        if (k > 0) out.top_logprobs[at] = likeliest(host, r, k, options.temperature, row);
      }
    });
  }
}

}  // namespace twinkle::sampler
