// Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7)
// as a mean. Extras and options: policy.h; loss_agg_mode "token-mean" (default, over all rows of
// the batch) or "seq-mean-token-mean" (over each sequence's, then over sequences).
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

namespace twinkle::loss {
namespace {

struct Options {
  PolicyOptions policy;
  std::string loss_agg_mode = "token-mean";

  static constexpr auto fields() {
    return std::tuple{group("policy", &Options::policy),
                      option("loss_agg_mode", &Options::loss_agg_mode,
                             one_of("token-mean", "seq-mean-token-mean"), "what it averages")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "PPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const Options options = parse(json);
  const PolicyOptions o = options.policy;
  const bool by_rows = options.loss_agg_mode == "token-mean";
  return of_policy(in, o, "PPOLoss", by_rows ? mean_of_rows(in) : mean_of_sequences(in),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss ppo_loss() {
  return of_rows<make>({.name = "ppo_loss",
                        .class_name = "PPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<Options>});
}

}  // namespace twinkle::loss
