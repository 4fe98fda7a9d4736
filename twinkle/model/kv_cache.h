// The seam through which sampling gives mixers their past. Attention's new keys and values are
// stored, and queries see them and everything stored before; a mixer with a state gets the memory
// that it asked for (StateSpec). The sampler implements it over pages and slots.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "twinkle/kernels/delta/delta.h"
#include "twinkle/nn/attention/attention.h"
#include "twinkle/nn/rows.h"

namespace twinkle::model {

class KvCache {
 public:
  virtual ~KvCache() = default;
  // q [T, H, d], k and v [T, K, d], after rope; segment s of the rows continues the cache's
  // sequence s. [T, H, d]. A layer whose state is latent gives its keys as v, too.
  virtual at::Tensor attend(size_t layer, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                            const at::Tensor& v_TKd, const nn::Rows& rows,
                            const nn::AttentionOptions& options) = 0;
  // The rows' sequences, where each goes on, and its state, to be changed; good until the next
  // call.
  virtual std::span<const kernels::DeltaRun> states(size_t layer) = 0;
};

}  // namespace twinkle::model
