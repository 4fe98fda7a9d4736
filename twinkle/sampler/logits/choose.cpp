#include "twinkle/sampler/logits/choose.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/team.h"
#include "twinkle/kernels/softmax.h"
#include "twinkle/sampler/logits/scores.h"

namespace twinkle::sampler {
namespace {

void score(Chosen& c, const at::Tensor& host, const kernels::RowStats& stats) {
  c.logprob = static_cast<float>(stats.logprob);
  c.top = likeliest(host, c.row, c.params().top_logprobs, temperature_of(c.params()), stats);
}

// By the kernel that scores for the trainer, so that the log-probabilities have its bits.
void score_on_device(const at::Tensor& logits, const at::Tensor& host, std::span<Chosen> chosen) {
  std::vector<Chosen*> scored;
  std::vector<int64_t> rows;
  std::vector<int32_t> ids;
  std::vector<float> temperatures;
  for (Chosen& c : chosen) {
    if (!c.is_scored()) continue;
    scored.push_back(&c);
    rows.push_back(c.row);
    ids.push_back(c.token);
    temperatures.push_back(temperature_of(c.params()));
  }
  if (scored.empty()) return;
  const at::Tensor index = at::tensor(rows, at::kLong).to(logits.device());
  std::vector<kernels::RowStats> stats(scored.size());
  kernels::softmax_stats(logits.index_select(0, index), ids, temperatures, false, stats);
  for (size_t i = 0; i < scored.size(); ++i) score(*scored[i], host, stats[i]);
}

// The largest logit's token of each row where that is all that is asked of a device: then the
// logits stay there.
bool choose_largest(const at::Tensor& logits, std::span<Chosen> chosen) {
  const auto is_enough = [](const Chosen& c) {
    const SamplingParams& params = c.params();
    return c.row < 0 || (params.temperature == 0 && params.repetition_penalty == 1.0 &&
                         params.top_logprobs == 0);
  };
  if (logits.is_cpu() || !std::ranges::all_of(chosen, is_enough)) return false;
  const auto [tops, ids] = at::max(logits, 1);  // the first of equal ones
  const at::Tensor top = tops.to(at::kFloat).cpu(), id = ids.cpu();
  for (Chosen& c : chosen) {
    if (c.row < 0) continue;
    const bool usable = std::isfinite(top.const_data_ptr<float>()[c.row]);
    c.token = usable ? static_cast<int32_t>(id.const_data_ptr<int64_t>()[c.row]) : kNoToken;
  }
  score_on_device(logits, {}, chosen);
  return true;
}

}  // namespace

void choose(const at::Tensor& logits, std::span<Chosen> chosen) {
  if (choose_largest(logits, chosen)) return;
  const at::Tensor host = logits.is_cpu() ? logits : kernels::cuda::to_host(logits);
  const int64_t vocab = logits.size(1);
  kernels::parallel_for(0, std::ssize(chosen), 1, [&](int64_t begin, int64_t end) {
    PickScratch scratch;
    const at::Tensor wide = at::empty({vocab}, at::kFloat);
    for (int64_t i = begin; i < end; ++i) {
      Chosen& c = chosen[static_cast<size_t>(i)];
      if (c.row < 0) continue;
      const SamplingParams& params = c.params();
      wide.copy_(host.select(0, c.row));
      const std::span row(wide.const_data_ptr<float>(), static_cast<size_t>(vocab));
      const double u = uniform(params.seed, static_cast<uint64_t>(c.sequence->sample),
                               static_cast<uint64_t>(c.sequence->size()));
      c.token = pick(row, params, c.sequence->tokens, u, scratch);
      if (logits.is_cpu() && c.is_scored()) {
        score(c, host,
              kernels::softmax_stats(host, c.row, c.token, temperature_of(c.params()), false));
      }
    }
  });
  if (!logits.is_cpu()) score_on_device(logits, host, chosen);
}

}  // namespace twinkle::sampler
