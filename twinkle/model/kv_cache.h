// The seam through which sampling gives attention its past: new keys and values are stored, and
// queries see them and everything stored before. The sampler implements it over pages; a mixer
// without keys and values has its own.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/nn/attention/attention.h"
#include "twinkle/nn/rows.h"

namespace twinkle::model {

class KvCache {
 public:
  virtual ~KvCache() = default;
  // q [T, H, d], k and v [T, K, d], after rope; segment s of the rows continues the cache's
  // sequence s. [T, H, d].
  virtual at::Tensor attend(size_t layer, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                            const at::Tensor& v_TKd, const nn::Rows& rows,
                            const nn::AttentionOptions& options) = 0;
};

}  // namespace twinkle::model
