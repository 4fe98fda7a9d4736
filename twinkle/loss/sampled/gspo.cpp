// Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071) as Tinker's loss of this
// name has it, a sum with a gradient for each token. The ratio of a sequence is s = exp(mean(log p
// - logprobs)) over the rows whose sequence_ratio_mask is not 0, taken as a constant; a row's is s
// exp(log p - sg(log p)), and its loss -min(ratio A, clip(ratio, low, high) A), so that its
// derivative is -s A or 0. On a tie the first is taken. Of the whole operation: a row's derivative
// depends on its sequence's other rows. Extras and options: clip.h, and sequence_ratio_mask.
#include <cmath>

#include "twinkle/loss/rows.h"
#include "twinkle/loss/sampled/clip.h"

namespace twinkle::loss {
namespace {

SequenceLoss make(const Inputs& in, const Json& json) {
  const auto add = [rows = clipped_rows(in, json, "gspo"), weights = doubles(in.weights),
                    mask = doubles(in, "sequence_ratio_mask", 0)](
                       const Sequence& sequence, const std::vector<double>& logprobs,
                       std::vector<double>& grad) {
    double sum = 0, count = 0, loss = 0;
    for (const size_t t : sequence.scored) {
      if (mask[t] == 0) continue;
      sum += logprobs[t] - rows.old[t];
      ++count;
    }
    require(count > 0 || sequence.scored.empty(), Code::kInvalid,
            "loss: gspo: sequence_ratio_mask of sequence ", sequence.number,
            " is 0 everywhere; it must mark the tokens that were sampled");
    const double ratio = std::exp(sum / count);
    for (const size_t t : sequence.scored) {
      const double w = weights[t], a = rows.advantages[t], clipped = rows.clipped(t, ratio) * a;
      const bool is_clipped = clipped < ratio * a;
      loss -= w * (is_clipped ? clipped : ratio * a);
      grad[t] = is_clipped ? 0 : -w * ratio * a;
    }
    return loss;
  };
  return {.add = add, .num_tokens = num_scored(in.weights)};
}

std::vector<Extra> extras() {
  std::vector<Extra> out = kClippedExtras;
  out.push_back({.name = "sequence_ratio_mask"});
  return out;
}

}  // namespace

Loss gspo() {
  return of_sequences<make>(
      {.name = "gspo", .class_name = "gspo", .extras = extras(), .check = [](const Json& json) {
         check_clip(json, "gspo");
       }});
}

}  // namespace twinkle::loss
