// For GRPOLoss: each label is clipped on its own.
#include "twinkle/metric/policies/policy.h"

namespace twinkle::metric {
namespace {

Clipped clipped_labels(const PolicyOptions& options, const Batch&, const at::Tensor& d,
                       const at::Tensor& advantages) {
  return beyond(options, d, advantages);
}

}  // namespace

Kind grpo() { return policy_kind<clipped_labels>("GRPOMetric"); }
Kind ppo() { return policy_kind<clipped_labels>("PPOMetric"); }  // PPOLoss clips the same way

}  // namespace twinkle::metric
