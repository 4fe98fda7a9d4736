// GRPO's terms, the mean over all rows of the batch, as TRL's loss_type "bnpo" and the token-level
// loss of DAPO (Yu et al. 2025, arXiv 2503.14476). Extras and options: policy.h.
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

PolicyOptions parse(const Json& json) { return parsed<PolicyOptions>(json, "BNPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse(json);
  return of_policy(in, o, "BNPOLoss", mean_of_rows(in),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss bnpo() {
  return of_rows<make>({.name = "bnpo",
                        .class_name = "BNPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<PolicyOptions>});
}

}  // namespace twinkle::loss
