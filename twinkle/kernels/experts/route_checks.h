// Checks of a router's tensors, and the type of the computation, for the files of this folder.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/base/error.h"

namespace twinkle::kernels {

// Error kInvalid, by `name`: not a contiguous matrix of that type on the CPU.
inline void check_routed(const at::Tensor& x, const char* name, at::ScalarType type) {
  require(x.is_cpu() && x.dim() == 2 && x.is_contiguous() && x.scalar_type() == type,
          Code::kInvalid, "kernels: ", name, " is ", x.scalar_type(), " ", x.sizes(), " on ",
          x.device().str(), ", it must be contiguous, with 2 dims, of ", type,
          " and on the CPU: experts run there alone");
}

// body(a float or a double, as x has). Error kInvalid: x is of neither, and as check_routed.
template <class Body>
void with_scores(const at::Tensor& x, const char* name, const Body& body) {
  const bool wide = x.scalar_type() == at::kDouble;
  check_routed(x, name, wide ? at::kDouble : at::kFloat);
  wide ? body(double{}) : body(float{});
}

}  // namespace twinkle::kernels
