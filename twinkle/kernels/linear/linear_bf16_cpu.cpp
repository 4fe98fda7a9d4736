#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_bf16_product.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {
namespace {

inline float widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

void portable(const Bf16Product& p, int64_t first, int64_t last) {
  const int64_t step = p.transposed ? p.outputs : 1;  // from one input's weight to the next
  for (int64_t r = 0; r < p.rows; ++r) {
    const uint16_t* x = p.x + r * p.x_stride;
    for (int64_t o = first; o < last; ++o) {
      const uint16_t* w = p.w + (p.transposed ? o : o * p.inputs);
      float sum = 0;
      for (int64_t i = 0; i < p.inputs; i += 2) {
        if (i + 1 < p.inputs) {
          sum = __builtin_fmaf(widen(x[i + 1]), widen(w[(i + 1) * step]), sum);
        }
        sum = __builtin_fmaf(widen(x[i]), widen(w[i * step]), sum);
      }
      if (p.bias) sum += widen(p.bias[o]);
      p.y[r * p.outputs + o] = c10::detail::round_to_nearest_even(sum);
    }
  }
}

bool is_matrix(const at::Tensor& weight) {
  return weight.dim() == 2 && weight.scalar_type() == at::kBFloat16 &&
         (weight.is_contiguous() || weight.t().is_contiguous());
}

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  require(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous() &&
              is_matrix(weight) && x.size(1) == weight.size(1),
          Code::kInvalid, "kernels: linear_bf16's x is ", x.scalar_type(), " ", x.sizes(),
          ", its weight ", weight.scalar_type(), " ", weight.sizes(),
          "; they must be contiguous bfloat16 [m, I] and [O, I]");
  require(!bias.defined() || (bias.sizes() == weight.sizes().slice(0, 1) && bias.is_contiguous() &&
                              bias.scalar_type() == at::kBFloat16),
          Code::kInvalid, "kernels: linear_bf16's bias is ", bias.scalar_type(), " ", bias.sizes(),
          ", it must be contiguous bfloat16 [", weight.size(0), "]");
}

const uint16_t* words(const at::Tensor& x) {
  return x.defined() ? reinterpret_cast<const uint16_t*>(x.const_data_ptr()) : nullptr;
}

}  // namespace

bool linear_bf16_is_fast() {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx512bf16") != 0 &&
                           __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512vl") != 0;
  return fast;
#else
  return false;
#endif
}

at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       LinearPath path) {
  check(x, weight, bias);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const at::Tensor in = inputs % 2 == 0 ? x : at::constant_pad_nd(x, {0, 1});
  const at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  const Bf16Product p{.x = words(in),
                      .w = words(weight),
                      .transposed = !weight.is_contiguous(),
                      .bias = words(bias),
                      .y = reinterpret_cast<uint16_t*>(y.mutable_data_ptr()),
                      .rows = x.size(0),
                      .outputs = outputs,
                      .inputs = inputs,
                      .x_stride = in.size(1)};
  if (y.numel() == 0) return y;
  const bool fast = path == LinearPath::kBest && linear_bf16_is_fast();
  const Bf16Loop loop = fast ? avx512_loop(p) : Bf16Loop{16, portable};
  const int64_t tiles = (outputs + loop.tile - 1) / loop.tile;
  const int64_t grain = std::max<int64_t>(1, 16384 / (std::max<int64_t>(1, inputs) * loop.tile));
  parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    loop.run(p, begin * loop.tile, std::min(outputs, end * loop.tile));
  });
  return y;
}

}  // namespace twinkle::kernels
