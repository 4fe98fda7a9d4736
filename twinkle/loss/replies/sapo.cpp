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
};

Options parse(const Json& json) {
  const Options o{parse_policy(json, "SAPOLoss", {"tau_pos", "tau_neg"}),
                  get_or<double>(json, "tau_pos", 1), get_or<double>(json, "tau_neg", 1)};
  for (const double tau : {o.tau_pos, o.tau_neg})
    require(tau > 0 && std::isfinite(tau), Code::kInvalid,
            "loss: tau_pos and tau_neg of SAPOLoss "
            "are ",
            o.tau_pos, " and ", o.tau_neg, ", they must be above 0 and finite");
  return o;
}

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
  return of_rows<make>(
      {.name = "sapo", .class_name = "SAPOLoss", .extras = kPolicyExtras, .check = checked<parse>});
}

}  // namespace twinkle::loss
