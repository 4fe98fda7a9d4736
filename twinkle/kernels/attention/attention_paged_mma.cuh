// The functions of attention_paged_mma.cu, for attention_cuda.cu, which takes all other cases.
#pragma once
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {

inline bool is_for_mma(Type type, const PagedQuery& in) {
  return type == Type::kBf16 && in.window == 0 && (in.pages.dim == 64 || in.pages.dim == 128);
}

void attention_paged_mma(const PagedQuery& in, const PagedPartial& partial, void* out,
                         Stream stream);

}  // namespace twinkle::kernels::cuda
