// Calls a generic lambda with the C++ type of a tensor's elements. Internal to this folder.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include "twinkle/base/error.h"

namespace twinkle::kernels {

// body(T{}) with T c10::BFloat16, float or double.
template <class Body>
decltype(auto) with_type(const at::Tensor& x, const char* name, const Body& body) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return body(c10::BFloat16{});
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    default:
      fail(Code::kInvalid, "kernels: ", name, " is ", x.scalar_type(),
           ", it must be bfloat16, float32 or float64");
  }
}

inline void require_like(const at::Tensor& x, const char* name, const at::Tensor& model,
                         const char* model_name) {
  require(x.sizes() == model.sizes() && x.scalar_type() == model.scalar_type(), Code::kInvalid,
          "kernels: ", name, " is ", x.scalar_type(), " ", x.sizes(), ", it must be like ",
          model_name, ", ", model.scalar_type(), " ", model.sizes());
}

}  // namespace twinkle::kernels
