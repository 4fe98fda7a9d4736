// AttentionOptions::sinks for the packed and the paged loops. Internal to this folder.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::kernels {

inline void check_sinks(const at::Tensor& q, const at::Tensor& sinks) {
  if (!sinks.defined()) return;
  require(sinks.dim() == 1 && sinks.size(0) == q.size(1) && sinks.is_floating_point(),
          Code::kInvalid, "kernels: attention's sinks are ", sinks.scalar_type(), " ",
          sinks.sizes(), ", they must be one number for each of q's ", q.size(1), " heads");
  require(!cuda::takes(q), Code::kInvalid,
          "kernels: attention with sinks runs on the CPU only in this version");
}

// In the type of the sums; undefined where there are none.
inline at::Tensor wide_sinks(const at::Tensor& q, const at::Tensor& sinks) {
  if (!sinks.defined()) return sinks;
  return sinks.to(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

// From a head on; null where there are none.
template <class A>
const A* sinks_of(const at::Tensor& wide, int64_t head) {
  return wide.defined() ? wide.const_data_ptr<A>() + head : nullptr;
}

}  // namespace twinkle::kernels
