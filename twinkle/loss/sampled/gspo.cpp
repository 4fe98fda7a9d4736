// Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071) as Tinker's loss of this
// name has it, a sum with a gradient for each token. The ratio of a sequence is s = exp(mean(log p
// - logprobs)) over the rows whose sequence_ratio_mask is not 0, taken as a constant; a row's is s
// exp(log p - sg(log p)), and its loss -min(ratio A, clip(ratio, low, high) A), so that its
// derivative is -s A or 0. On a tie the first is taken. Of the whole operation: a row's derivative
// depends on its sequence's other rows. Extras and options: clip.h, and sequence_ratio_mask.
#include <cmath>

#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"
#include "twinkle/loss/sampled/clip.h"

namespace twinkle::loss {
namespace {

Output run_all(const Inputs& in, const Json& json) {
  const ClippedRows rows = clipped_rows(in, json, "gspo");
  const std::vector<double> logprobs = doubles(in.logprobs), weights = doubles(in.weights),
                            mask = doubles(in, "sequence_ratio_mask", 0);
  std::vector<double> grad(logprobs.size());
  Output out{.num_tokens = num_scored(in.weights)};
  size_t number = 0;
  for (const std::vector<size_t>& scored : scored_rows(in)) {
    double sum = 0, count = 0, of_sequence = 0;
    for (const size_t t : scored) {
      if (mask[t] == 0) continue;
      sum += logprobs[t] - rows.old[t];
      ++count;
    }
    require(count > 0 || scored.empty(), Code::kInvalid,
            "loss: gspo: sequence_ratio_mask of sequence ", number,
            " is 0 everywhere; it must mark the tokens that were sampled");
    const double ratio = std::exp(sum / count);
    for (const size_t t : scored) {
      const double w = weights[t], a = rows.advantages[t], clipped = rows.clipped(t, ratio) * a;
      const bool is_clipped = clipped < ratio * a;
      of_sequence -= w * (is_clipped ? clipped : ratio * a);
      grad[t] = is_clipped ? 0 : -w * ratio * a;
    }
    out.loss += of_sequence;
    ++number;
  }
  out.grad = at::tensor(grad, at::kDouble).to(in.logprobs.scalar_type());
  return out;
}

std::vector<Extra> extras() {
  std::vector<Extra> out = kClippedExtras;
  out.push_back({.name = "sequence_ratio_mask"});
  return out;
}

}  // namespace

Loss gspo() {
  return {.name = "gspo",
          .class_name = "gspo",
          .extras = extras(),
          .check = [](const Json& json) { check_clip(json, "gspo"); },
          .run = run_all,
          .doubles = true};
}

}  // namespace twinkle::loss
