// For CISPOLoss: clip_ratio_high is of labels whatever the sign of A, and clip_ratio_low is 0,
// since that loss has no lower limit.
#include "twinkle/metric/policies/policy.h"

namespace twinkle::metric {
namespace {

Clipped clipped_above(const PolicyOptions& options, const Batch&, const at::Tensor& d,
                      const at::Tensor&) {
  const at::Tensor high = d.exp() > 1 + options.high();
  return {.low = at::zeros_like(high), .high = high};
}

}  // namespace

Kind cispo() { return policy_kind<clipped_above>("CISPOMetric"); }

}  // namespace twinkle::metric
