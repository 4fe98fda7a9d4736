#include "twinkle/sampler/logits/scores.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "twinkle/kernels/simd/team.h"
#include "twinkle/nn/head/head.h"
#include "twinkle/sampler/logits/sampling.h"

namespace twinkle::sampler {
namespace {

constexpr int64_t kRows = 128;  // rows whose logits exist at a time

struct Row {
  const at::Tensor& logits;  // on the CPU
  int64_t row;
  float temperature;
  const kernels::RowStats& stats;

  float logprob(int32_t id) const {
    return static_cast<float>(kernels::softmax_logprob(logits, row, id, temperature, stats));
  }
};

// The targets at positions [first, last).
std::span<const PromptTarget> targets_in(std::span<const PromptTarget> all, int64_t first,
                                         int64_t last) {
  const auto begin = [&](int64_t position) {
    return std::ranges::lower_bound(all, position, {}, &PromptTarget::position);
  };
  return {begin(first), begin(last)};
}

// Fills `out` by the random numbers of this position, one of each sample that a request may have;
// its samples draw their own tokens at later positions.
void draw_alternatives(const Row& row, const SamplingParams& params, int64_t position,
                       PickScratch& scratch, std::span<TokenLogprob> out) {
  if (out.empty() || std::isnan(row.stats.logprob)) return;
  std::vector<double> u(out.size());
  for (size_t i = 0; i < u.size(); ++i)
    u[i] = uniform(params.seed, i, static_cast<uint64_t>(position));
  const at::Tensor wide = row.logits.select(0, row.row).to(at::kFloat);
  const std::span logits(wide.const_data_ptr<float>(), static_cast<size_t>(wide.numel()));
  std::vector<int32_t> ids(out.size());
  draw(logits, params.temperature, u, scratch, ids);
  std::ranges::transform(ids, out.begin(),
                         [&](int32_t id) { return TokenLogprob{id, row.logprob(id)}; });
}

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

PromptScores score_tokens(const at::Tensor& hidden, const HeadOf& of,
                          std::span<const int32_t> prompt, int64_t first,
                          const SamplingParams& params) {
  const at::NoGradGuard no_grad;
  const int64_t n = hidden.size(0), k = params.top_prompt_logprobs;
  const auto size = static_cast<size_t>(n), draws = static_cast<size_t>(params.prompt_alt_tokens);
  const float temperature = temperature_of(params);
  const std::span targets = targets_in(params.prompt_targets, first, first + n);
  PromptScores out{.logprobs = std::vector<float>(size),
                   .top_logprobs = std::vector<TopLogprobs>(k > 0 ? size : 0),
                   .alt_tokens = std::vector<TokenLogprob>(size * draws),
                   .target_logprobs = std::vector<float>(targets.size())};
  for (int64_t begin = 0; begin < n; begin += kRows) {
    const int64_t count = std::min(kRows, n - begin);
    const at::Tensor logits =
        nn::sampling_logits(hidden.narrow(0, begin, count), of.head,
                            {.cu_seqlens = {0, count}, .segments = {{.slot = of.slot}}});
    const auto ids = prompt.subspan(static_cast<size_t>(first + begin), static_cast<size_t>(count));
    std::vector<kernels::RowStats> stats(ids.size());
    const std::vector<float> temperatures(stats.size(), temperature);
    kernels::softmax_stats(logits, ids, temperatures, false, stats);
    const bool others = k > 0 || draws > 0 || !targets.empty();
    const at::Tensor host = others ? logits.cpu() : logits;
    kernels::parallel_for(0, count, 1, [&](int64_t lo, int64_t hi) {
      PickScratch scratch;
      for (int64_t r = lo; r < hi; ++r) {
        const auto at = static_cast<size_t>(begin + r);
        const Row row{host, r, temperature, stats[static_cast<size_t>(r)]};
        const int64_t position = first + begin + r;
        out.logprobs[at] = static_cast<float>(row.stats.logprob);
        if (k > 0) out.top_logprobs[at] = likeliest(host, r, k, temperature, row.stats);
        draw_alternatives(row, params, position, scratch,
                          std::span(out.alt_tokens).subspan(at * draws, draws));
        const std::span here = targets_in(targets, position, position + 1);
        const auto to = out.target_logprobs.begin() + (here.data() - targets.data());
        std::ranges::transform(here, to, [&](const auto& t) { return row.logprob(t.id); });
      }
    });
  }
  return out;
}

}  // namespace twinkle::sampler
