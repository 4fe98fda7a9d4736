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

// Adds the loss of rows [begin, end), one sequence, and their derivatives.
double add_sequence(Rows& rows, const PolicyOptions& o, size_t begin, size_t end) {
  double mean = 0, count = 0, of_ratio = 0, loss = 0;
  for (size_t t = begin; t < end; ++t) {
    if (rows.weights[t] == 0) continue;
    mean += std::log(ratio_of(rows.logprobs[t], &rows.old[t]).value);
    ++count;
  }
  if (count == 0) return 0;
  mean /= count;
  for (size_t t = begin; t < end; ++t) {
    if (rows.weights[t] == 0) continue;
    const double factor = rows.weights[t] * rows.scale[t];
    const Term each = surrogate(o, {std::exp(mean), std::exp(mean)}, rows.advantages[t]);
    of_ratio += factor * each.grad;
    loss += factor * each.value;
    if (o.beta == 0) continue;
    const Term kl = divergence(o.beta, rows.logprobs[t], rows.reference[t]);
    loss += factor * kl.value;
    rows.grad[t] = factor * kl.grad;
  }
  for (size_t t = begin; t < end; ++t) {
    // A row whose own ratio is held at its limit does not move the mean.
    if (rows.weights[t] != 0 && ratio_of(rows.logprobs[t], &rows.old[t]).slope != 0)
      rows.grad[t] += of_ratio / count;
  }
  return loss;
}

Output run_all(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse_policy(json, "GSPOLoss");
  check_reference(in, o, "GSPOLoss");
  Rows rows{
      .logprobs = doubles(in.logprobs),
      .weights = doubles(in.weights),
      .old = in.extras.contains("old_logps") ? doubles(in, "old_logps", 0) : doubles(in.logprobs),
      .advantages = doubles(in, "advantages", 0),
      .reference = doubles(in, "ref_logps", 0),
      .scale = mean_of_sequences(in),
      .grad = std::vector<double>(static_cast<size_t>(in.weights.numel()))};
  Output out{.num_tokens = std::min(num_scored(in.weights), 1.0)};
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s)
    out.loss += add_sequence(rows, o, static_cast<size_t>(in.cu_seqlens[s]),
                             static_cast<size_t>(in.cu_seqlens[s + 1]));
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
