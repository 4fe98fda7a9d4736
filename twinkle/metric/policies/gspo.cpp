// For GSPOLoss: the shares are of sequences with labels, by the exponential of their mean d and the
// mean of their advantages.
#include "twinkle/metric/policies/policy.h"

namespace twinkle::metric {
namespace {

Clipped clipped_sequences(const PolicyOptions& options, const Batch& batch, const at::Tensor& d,
                          const at::Tensor& advantages) {
  const at::Tensor counts = at::tensor(batch.counts), some = counts > 0;
  const auto means = [&](const at::Tensor& of_labels) {
    return batch.sums(of_labels).masked_select(some) / counts.masked_select(some);
  };
  return beyond(options, means(d), means(advantages));
}

}  // namespace

Kind gspo() { return policy_kind<clipped_sequences>("GSPOMetric"); }

}  // namespace twinkle::metric
