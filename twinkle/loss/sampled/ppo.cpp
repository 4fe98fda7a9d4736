// Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7):
// the sum over rows of -min(r A, clip(r, low, high) A), r = exp(log p - logprobs). Tinker's loss of
// this name. Extras and options: clip.h. On a tie the first is taken.
#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"
#include "twinkle/loss/sampled/clip.h"

namespace twinkle::loss {
namespace {

RowLoss make(const Inputs& in, const Json& json) {
  return {.term = [rows = clipped_rows(in, json, "ppo")](int64_t row, double logprob) -> Term {
            const auto t = static_cast<size_t>(row);
            const double r = rows.ratio(t, logprob), a = rows.advantages[t],
                         clipped = rows.clipped(t, r) * a;
            if (clipped < r * a) return {-clipped, 0};
            return {-r * a, -r * a};
          },
          .num_tokens = num_scored(in.weights)};
}

}  // namespace

Loss ppo() {
  return of_rows<make>(
      {.name = "ppo", .class_name = "ppo", .extras = kClippedExtras, .check = [](const Json& json) {
         check_clip(json, "ppo");
       }});
}

}  // namespace twinkle::loss
