#include <ATen/ops/empty.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kThinTile = 16;  // outputs: a multiple of every instruction set's lanes

bool is_f32(const at::Tensor& x, int64_t dim) {
  return x.dim() == dim && x.scalar_type() == at::kFloat && x.is_cpu();
}

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  require(is_f32(x, 2) && x.is_contiguous() && is_f32(weight, 2) &&
              (weight.is_contiguous() || weight.t().is_contiguous()) && x.size(1) == weight.size(1),
          Code::kInvalid, "kernels: linear_f32's x is ", x.scalar_type(), " ", x.sizes(),
          ", its weight ", weight.scalar_type(), " ", weight.sizes(),
          "; they must be contiguous float32 [m, I] and [O, I], on the CPU");
  require(!bias.defined() ||
              (is_f32(bias, 1) && bias.is_contiguous() && bias.size(0) == weight.size(0)),
          Code::kInvalid, "kernels: linear_f32's bias is ", bias.scalar_type(), " ", bias.sizes(),
          ", it must be contiguous float32 [", weight.size(0), "]");
}

}  // namespace

at::Tensor linear_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const Simd& simd) {
  check(x, weight, bias);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  if (y.numel() == 0) return y;
  if (inputs == 0) return bias.defined() ? y.copy_(bias.expand_as(y)) : y.zero_();
  const F32Product p{.x = x.const_data_ptr<float>(),
                     .w = weight.const_data_ptr<float>(),
                     .transposed = !weight.is_contiguous(),
                     .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                     .y = y.mutable_data_ptr<float>(),
                     .rows = x.size(0),
                     .outputs = outputs,
                     .inputs = inputs};
  const auto loop = simd.linear_f32;
  const int64_t tile = p.is_thin() ? kThinTile : kWideTile;
  const int64_t grain = std::max<int64_t>(1, 8192 / (inputs * tile));
  parallel_for(0, (outputs + tile - 1) / tile, grain, [&](int64_t begin, int64_t end) {
    loop(p, begin * tile, std::min(outputs, end * tile));
  });
  return y;
}

}  // namespace twinkle::kernels
