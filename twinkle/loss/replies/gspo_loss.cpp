// Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5): GRPO with one
// ratio for a sequence, the exponential of its mean lp - old_logps. Of the whole operation: a row's
// derivative depends on its sequence's other rows. Extras and options: policy.h.
#include <cmath>

#include "twinkle/loss/reduce.h"
#include "twinkle/loss/replies/policy.h"

namespace twinkle::loss {
namespace {

at::Tensor entropy_grad_of(const Inputs& in, const Json& json) {
  return entropy_bonus(in, parse_policy(json, "GSPOLoss").entropy_coef, mean_of_sequences(in));
}

struct Rows {
  std::vector<double> logprobs, weights, old, advantages, reference, scale, grad;
};

// Adds the loss of a sequence's scored rows, and their derivatives.
double add_sequence(const std::vector<size_t>& scored, const PolicyOptions& o, Rows& rows) {
  double sum = 0, of_ratio = 0, loss = 0;
  const auto own = [&](size_t t) { return ratio_of(rows.logprobs[t], &rows.old[t]); };
  for (const size_t t : scored) sum += std::log(own(t).value);
  const auto count = static_cast<double>(scored.size());
  const double ratio = std::exp(sum / count);
  for (const size_t t : scored) {
    const double factor = rows.weights[t] * rows.scale[t];
    const Term each = surrogate(o, {ratio, ratio}, rows.advantages[t]);
    of_ratio += factor * each.grad;
    loss += factor * each.value;
    if (o.beta == 0) continue;
    const Term kl = divergence(o.beta, rows.logprobs[t], rows.reference[t]);
    loss += factor * kl.value;
    rows.grad[t] = factor * kl.grad;
  }
  // A row whose own ratio is held at its limit does not move the mean.
  for (const size_t t : scored)
    if (own(t).slope != 0) rows.grad[t] += of_ratio / count;
  return loss;
}

Output run_all(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse_policy(json, "GSPOLoss");
  check_reference(in, o, "GSPOLoss");
  Rows rows{doubles(in.logprobs), doubles(in.weights)};
  rows.old = in.extras.contains("old_logps") ? doubles(in, "old_logps", 0) : rows.logprobs;
  rows.advantages = doubles(in, "advantages", 0);
  rows.reference = doubles(in, "ref_logps", 0);
  rows.scale = mean_of_sequences(in);
  rows.grad.resize(rows.weights.size());
  Output out{.num_tokens = std::min(num_scored(in.weights), 1.0)};
  for (const auto& scored : scored_rows(in)) out.loss += add_sequence(scored, o, rows);
  out.loss += through_entropies(in, entropy_grad_of(in, json));
  out.grad = at::tensor(rows.grad, at::kDouble).to(in.logprobs.scalar_type());
  return out;
}

}  // namespace

Loss gspo_loss() {
  return {.name = "gspo_loss",
          .class_name = "GSPOLoss",
          .extras = kPolicyExtras,
          .check = [](const Json& json) { parse_policy(json, "GSPOLoss"); },
          .run = run_all,
          .entropy_grad = entropy_grad_of,
          .doubles = true};
}

}  // namespace twinkle::loss
