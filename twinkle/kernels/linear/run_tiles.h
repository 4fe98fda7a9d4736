// Spreads a product of linear_f32's order over the threads. Internal to this folder.
#pragma once
#include <ATen/ops/empty.h>

#include <algorithm>

#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {

inline constexpr int64_t kThinTile = 16;  // outputs: a multiple of every instruction set's lanes

template <class T>
void run_tiles(const RunProduct<T>& p,
               void (*loop)(const RunProduct<T>&, int64_t, int64_t, float*)) {
  const int64_t tile = p.is_thin() ? kThinTile : kWideTile;
  const int64_t grain = std::max<int64_t>(1, 8192 / (p.inputs * tile));
  parallel_for(0, (p.outputs + tile - 1) / tile, grain, [&](int64_t begin, int64_t end) {
    at::Tensor scratch;
    if (!p.is_thin()) scratch = at::empty({p.scratch_size()}, at::kFloat);
    loop(p, begin * tile, std::min(p.outputs, end * tile),
         p.is_thin() ? nullptr : scratch.mutable_data_ptr<float>());
  });
}

}  // namespace twinkle::kernels
