#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/linear/result.h"
#include "twinkle/kernels/linear/run_tiles.h"

namespace twinkle::kernels {
namespace {

bool is_f32(const at::Tensor& x, int64_t dim) {
  return x.dim() == dim && x.scalar_type() == at::kFloat && x.is_cpu();
}

void check_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
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

RunProduct<float> product_of(const at::Tensor& x, const at::Tensor& weight) {
  return {.x = x.const_data_ptr<float>(),
          .w = weight.const_data_ptr<float>(),
          .transposed = !weight.is_contiguous(),
          .rows = x.size(0),
          .outputs = weight.size(0),
          .inputs = weight.size(1)};
}

}  // namespace

at::Tensor linear_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const Simd& simd) {
  check_f32(x, weight, bias);
  const at::Tensor y = result(x.size(0), weight.size(0), x.options());
  if (y.numel() == 0) return y;
  if (x.size(1) == 0) return bias.defined() ? y.copy_(bias.expand_as(y)) : y.zero_();
  RunProduct<float> p = product_of(x, weight);
  p.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  p.y = y.mutable_data_ptr<float>();
  run_tiles(p, simd.linear_f32);
  return y;
}

void add_linear_f32(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                    const Simd& simd) {
  check_f32(x, weight, {});
  require(
      is_f32(y, 2) && y.is_contiguous() && y.size(0) == x.size(0) && y.size(1) == weight.size(0),
      Code::kInvalid, "kernels: add_linear_f32's y is ", y.scalar_type(), " ", y.sizes(),
      ", it must be contiguous float32 [", x.size(0), ", ", weight.size(0), "], on the CPU");
  if (y.numel() == 0 || x.size(1) == 0) return;
  RunProduct<float> p = product_of(x, weight);
  p.y = y.mutable_data_ptr<float>();
  p.adds = true;
  run_tiles(p, simd.linear_f32);
}

}  // namespace twinkle::kernels
