// Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7)
// as a mean. Extras and options: policy.h; loss_agg_mode "token-mean" (default, over all rows of
// the batch) or "seq-mean-token-mean" (over each sequence's, then over sequences).
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

namespace twinkle::loss {
namespace {

struct Options {
  PolicyOptions policy;
  bool of_rows = true;
};

Options parse(const Json& json) {
  const PolicyOptions policy = parse_policy(json, "PPOLoss", {"loss_agg_mode"});
  const std::string mode =
      choice(json, "PPOLoss", "loss_agg_mode", {"token-mean", "seq-mean-token-mean"});
  return {policy, mode == "token-mean"};
}

RowLoss make(const Inputs& in, const Json& json) {
  const Options options = parse(json);
  const PolicyOptions o = options.policy;
  return of_policy(in, o, "PPOLoss", options.of_rows ? mean_of_rows(in) : mean_of_sequences(in),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss ppo_loss() {
  return of_rows<make>({.name = "ppo_loss",
                        .class_name = "PPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>});
}

}  // namespace twinkle::loss
