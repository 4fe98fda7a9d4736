// Shared by the losses of policies. Notation: lp is log p of a row, r = exp(lp -
// old_logps) the ratio to the policy that sampled it, with lp - old_logps within +-20, A its
// advantage. Each row's loss is f(r, A) + beta KL - entropy_coef H, KL = exp(ref - lp) - (ref - lp)
// - 1, H its entropy in nats; their mean is the loss's own.
// Extras per row: advantages; old_logps, without which the policy itself sampled and r is 1;
// ref_logps, where beta is above 0.
#pragma once
#include <vector>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {

struct PolicyOptions {
  double epsilon = 0.2;
  double epsilon_high = -1;  // below 0: epsilon
  double beta = 0, entropy_coef = 0;

  double high() const { return epsilon_high < 0 ? epsilon : epsilon_high; }
  static constexpr auto fields() {
    return std::tuple{
        option("epsilon", &PolicyOptions::epsilon, at_least(0), "the ratio's clip below 1"),
        option("epsilon_high", &PolicyOptions::epsilon_high, at_least(0),
               "its clip above 1 [epsilon]"),
        option("beta", &PolicyOptions::beta, at_least(0), "weight of the KL divergence"),
        option("entropy_coef", &PolicyOptions::entropy_coef, at_least(0), "weight of the entropy")};
  }
};

struct Ratio {
  double value, slope;  // r, d r / d lp
};
Ratio ratio_of(double logprob, const double* old);  // old null: the policy itself sampled

// -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A).
Term surrogate(const PolicyOptions& options, const Ratio& ratio, double advantage);
Term divergence(double beta, double logprob, double reference);

// The factor of a row's loss, so that their sum is the mean over each sequence's scored
// rows, then over sequences; or the mean over all scored rows.
std::vector<double> mean_of_sequences(const Inputs& inputs);
std::vector<double> mean_of_rows(const Inputs& inputs);

// The inputs' extras and the scale of the rows' losses.
struct PolicyRows {
  std::vector<double> scale, advantages, old, reference;  // old: empty without old_logps
  at::Tensor entropy_grad;                                // as of RowLoss
};
// Error kInvalid: no ref_logps where beta is above 0.
PolicyRows policy_rows(const Inputs& inputs, const PolicyOptions& options, std::string_view loss,
                       std::vector<double> scale);

using OfRatio = std::function<Term(const Ratio& ratio, double advantage, double logprob)>;
// The loss of these rows. Error kInvalid: policy_rows'.
RowLoss of_policy(const Inputs& inputs, const PolicyOptions& options, std::string_view loss,
                  std::vector<double> scale, OfRatio of_ratio);

inline const std::vector<Extra> kPolicyExtras = {{.name = "advantages"},
                                                 {.name = "old_logps", .optional = true},
                                                 {.name = "ref_logps", .optional = true}};

}  // namespace twinkle::loss
