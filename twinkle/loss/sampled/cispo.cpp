// Clipped importance sampling policy optimization (MiniMax 2025, arXiv 2506.13585, eq. 4): the sum
// over rows of -clip(r, low, high) A log p, the first factor taken as a constant, so that every row
// learns; r = exp(log p - logprobs). Tinker's loss of this name. Extras and options: clip.h.
#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"
#include "twinkle/loss/sampled/clip.h"

namespace twinkle::loss {
namespace {

RowLoss make(const Inputs& in, const Json& json) {
  return {.term = [rows = clipped_rows(in, json, "cispo")](int64_t row, double logprob) -> Term {
            const auto t = static_cast<size_t>(row);
            const double factor = -rows.clipped(t, rows.ratio(t, logprob)) * rows.advantages[t];
            return {factor * logprob, factor};
          },
          .num_tokens = num_scored(in.weights)};
}

}  // namespace

Loss cispo() {
  return of_rows<make>({.name = "cispo",
                        .class_name = "cispo",
                        .extras = kClippedExtras,
                        .check = [](const Json& json) { check_clip(json, "cispo"); }});
}

}  // namespace twinkle::loss
