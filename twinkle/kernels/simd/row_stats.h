// Statistics of one row of logits, and the inputs of its gradient.
#pragma once

namespace twinkle::kernels {

struct RowStats {
  double logprob =
      0;  // log-probability of `id`; this and the entropy as exact as the logits' arithmetic
  double entropy = 0;  // -sum p log p; only when asked for
  double top = 0;      // the largest logit / temperature
  double sum = 1;      // sum of exp(logit / temperature - top), so log-sum-exp is top + log(sum)
};

struct RowGrad {
  RowStats stats;
  float grad = 0;          // d loss / d logprob
  float entropy_grad = 0;  // d loss / d entropy; what is not 0 takes stats with the entropy
};

}  // namespace twinkle::kernels
