// Output tensors of products. Internal to this folder.
#pragma once
#include <ATen/ops/empty.h>

#include "twinkle/base/huge_pages.h"

namespace twinkle::kernels {

// [rows, outputs], uninitialised. Logits are mapped anew for every chunk, so they get huge pages,
// which fault less often. Smaller results come from pages that the heap keeps.
inline at::Tensor result(int64_t rows, int64_t outputs, const at::TensorOptions& options) {
  constexpr int64_t kMapped = int64_t{8} << 20;  // model::keep_heap_pages
  at::Tensor y = at::empty({rows, outputs}, options);
  const auto bytes = static_cast<int64_t>(y.nbytes());
  if (bytes >= kMapped) use_huge_pages(y.mutable_data_ptr(), bytes);
  return y;
}

}  // namespace twinkle::kernels
