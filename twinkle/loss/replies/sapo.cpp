// Soft adaptive policy optimization (arXiv 2511.20347): -sigmoid(tau (r - 1)) 4 / tau A in place of
// the clip, tau being tau_pos where A > 0 and tau_neg elsewhere (both 1 by default, above 0);
// averaged as GRPO. Extras and options: policy.h; epsilon has no effect.
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

struct Options {
  PolicyOptions policy;
  double tau_pos = 1, tau_neg = 1;

  static constexpr auto fields() {
    return std::tuple{group("policy", &Options::policy),
                      option("tau_pos", &Options::tau_pos, above(0), "tau where A > 0"),
                      option("tau_neg", &Options::tau_neg, above(0), "tau elsewhere")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "SAPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  return of_policy(in, o.policy, "SAPOLoss", mean_of_sequences(in),
                   [o](const Ratio& r, double a, double) -> Term {
                     const double tau = a > 0 ? o.tau_pos : o.tau_neg;
                     const double gate = 1 / (1 + std::exp(-tau * (r.value - 1)));
                     return {-gate * 4 / tau * a, -4 * gate * (1 - gate) * r.slope * a};
                   });
}

}  // namespace

Loss sapo() {
  return of_rows<make>({.name = "sapo",
                        .class_name = "SAPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<Options>});
}

}  // namespace twinkle::loss
