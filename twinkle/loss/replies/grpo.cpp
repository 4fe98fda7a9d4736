// Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3): the clipped
// surrogate, the mean over each sequence's rows, then over sequences. Extras and options: policy.h.
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

PolicyOptions parse(const Json& json) { return parsed<PolicyOptions>(json, "GRPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse(json);
  return of_policy(in, o, "GRPOLoss", mean_of_sequences(in),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss grpo() {
  return of_rows<make>({.name = "grpo",
                        .class_name = "GRPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<PolicyOptions>});
}

}  // namespace twinkle::loss
