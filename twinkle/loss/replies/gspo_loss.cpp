// Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5): GRPO with one
// ratio for a sequence, the exponential of its mean lp - old_logps. Of the whole operation: a row's
// derivative depends on its sequence's other rows. Extras and options: policy.h.
#include <algorithm>
#include <cmath>

#include "twinkle/loss/replies/policy.h"

namespace twinkle::loss {
namespace {

PolicyOptions parse(const Json& json) { return parsed<PolicyOptions>(json, "GSPOLoss"); }

SequenceLoss make(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse(json);
  const PolicyRows rows = policy_rows(in, o, "GSPOLoss", mean_of_sequences(in));
  const auto add = [o, rows, weights = doubles(in.weights)](const Sequence& sequence,
                                                            const std::vector<double>& logprobs,
                                                            std::vector<double>& grad) {
    double sum = 0, of_ratio = 0, loss = 0;
    const auto own = [&](size_t t) {  // ratio to itself, where it sampled: NaN stays NaN
      return ratio_of(logprobs[t], rows.old.empty() ? &logprobs[t] : &rows.old[t]);
    };
    for (const size_t t : sequence.scored) sum += std::log(own(t).value);
    const auto count = static_cast<double>(sequence.scored.size());
    const double ratio = std::exp(sum / count);
    for (const size_t t : sequence.scored) {
      const double factor = weights[t] * rows.scale[t];
      const Term each = surrogate(o, {ratio, ratio}, rows.advantages[t]);
      of_ratio += factor * each.grad;
      loss += factor * each.value;
      if (o.beta == 0) continue;
      const Term kl = divergence(o.beta, logprobs[t], rows.reference[t]);
      loss += factor * kl.value;
      grad[t] = factor * kl.grad;
    }
    // A row whose own ratio is held at its limit does not move the mean.
    for (const size_t t : sequence.scored)
      if (own(t).slope != 0) grad[t] += of_ratio / count;
    return loss;
  };
  return {.add = add,
          .num_tokens = std::min(num_scored(in.weights), 1.0),
          .entropy_grad = rows.entropy_grad};
}

}  // namespace

Loss gspo_loss() {
  return of_sequences<make>({.name = "gspo_loss",
                             .class_name = "GSPOLoss",
                             .extras = kPolicyExtras,
                             .check = checked<parse>,
                             .options = described<PolicyOptions>});
}

}  // namespace twinkle::loss
