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

struct Rows {
  ClippedRows clipped;
  std::vector<double> logprobs, weights, mask;
};

// Of scored rows [begin, end), sequence `number`. Error kInvalid: the mask leaves none of them.
double ratio_of(const Rows& rows, size_t begin, size_t end, size_t number) {
  double sum = 0, count = 0;
  bool scored = false;
  for (size_t t = begin; t < end; ++t) {
    if (rows.weights[t] == 0) continue;
    scored = true;
    if (rows.mask[t] == 0) continue;
    sum += rows.logprobs[t] - rows.clipped.old[t];
    ++count;
  }
  require(count > 0 || !scored, Code::kInvalid, "loss: gspo: sequence_ratio_mask of sequence ",
          number, " is 0 everywhere; it must mark the tokens that were sampled");
  return scored ? std::exp(sum / count) : 1;
}

Output run_all(const Inputs& in, const Json& json) {
  const Rows rows{.clipped = clipped_rows(in, json, "gspo"),
                  .logprobs = doubles(in.logprobs),
                  .weights = doubles(in.weights),
                  .mask = doubles(in, "sequence_ratio_mask", 0)};
  std::vector<double> grad(rows.logprobs.size());
  Output out{.num_tokens = num_scored(in.weights)};
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(in.cu_seqlens[s]),
               end = static_cast<size_t>(in.cu_seqlens[s + 1]);
    const double ratio = ratio_of(rows, begin, end, s);
    double of_sequence = 0;
    for (size_t t = begin; t < end; ++t) {
      const double w = rows.weights[t], a = rows.clipped.advantages[t];
      if (w == 0) continue;
      const double clipped = rows.clipped.clipped(t, ratio) * a;
      const bool is_clipped = clipped < ratio * a;
      of_sequence -= w * (is_clipped ? clipped : ratio * a);
      grad[t] = is_clipped ? 0 : -w * ratio * a;
    }
    out.loss += of_sequence;
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
