#include <ATen/ops/empty_like.h>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/rope.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

void check_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& position_ids) {
  require(x.dim() == 3 && cos.dim() == 2 && 2 * cos.size(1) <= x.size(2), Code::kInvalid,
          "kernels: rope's x is ", x.sizes(), " and its table ", cos.sizes(),
          ", they must be [tokens, heads, head_dim] and [positions, at most head_dim / 2]");
  require(position_ids.dim() == 1 && position_ids.size(0) == x.size(0), Code::kInvalid,
          "kernels: rope's position_ids are ", position_ids.sizes(), ", they must be [", x.size(0),
          "], one per token");
}

// The positions, each proved to be in the table before anything is written.
std::vector<int64_t> positions_in(const at::Tensor& position_ids, int64_t limit) {
  const at::Tensor ids = position_ids.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = ids.const_data_ptr<int64_t>();
  std::vector<int64_t> positions(first, first + ids.numel());
  for (size_t t = 0; t < positions.size(); ++t) {
    require(positions[t] >= 0 && positions[t] < limit, Code::kInvalid, "kernels: rope's position ",
            positions[t], " of token ", t, " is outside the table of ", limit, " positions");
  }
  return positions;
}

void turn_rows(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos,
               const at::Tensor& sin, const at::Tensor& position_ids, Turn turn, Pairs pairs,
               const Simd& simd) {
  check_rope(x, cos, position_ids);
  if (cuda::takes(x)) {
    if (!cuda::takes(position_ids)) positions_in(position_ids, cos.size(0));
    return cuda::rope(x, out, cos, sin, position_ids.to(x.device(), at::kLong), turn, pairs);
  }
  const auto positions = positions_in(position_ids, cos.size(0));
  with_type(x, "rope's x", [&]<class T>(T) {
    const int64_t heads = x.size(1), dim = x.size(2), half = cos.size(1);
    const T* from = x.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    const float* c = cos.const_data_ptr<float>();
    const float* s = sin.const_data_ptr<float>();
    const auto loop = pairs == Pairs::kHalves ? simd.loops<T>().rope : simd.loops<T>().rope_pairs;
    const Wide<T> sign = turn == Turn::kForward ? 1 : -1;
    parallel_for(0, x.size(0), row_grain(heads * dim), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t offset = t * heads * dim, angle = positions[t] * half;
        loop(from + offset, c + angle, s + angle, heads, dim, half, sign, to + offset);
      }
    });
  });
}

}  // namespace

void rope_(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
           const at::Tensor& position_ids, Turn turn, Pairs pairs, const Simd& simd) {
  require(x.is_contiguous(), Code::kInvalid, "kernels: rope_'s x of strides ", x.strides(),
          " is not contiguous, it must be; rope takes it as it is");
  turn_rows(x, x, cos, sin, position_ids, turn, pairs, simd);
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                const at::Tensor& position_ids, Turn turn, Pairs pairs, const Simd& simd) {
  const at::Tensor in = x.contiguous(), out = at::empty_like(in);
  turn_rows(in, out, cos, sin, position_ids, turn, pairs, simd);
  return out;
}

}  // namespace twinkle::kernels
