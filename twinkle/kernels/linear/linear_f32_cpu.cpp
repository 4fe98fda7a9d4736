#include <ATen/ops/empty.h>

#include <algorithm>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/simd/simd.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kTile = 16;  // outputs: a multiple of every instruction set's lanes

bool is_f32(const at::Tensor& x, int64_t dim) {
  return x.dim() == dim && x.scalar_type() == at::kFloat && x.is_contiguous();
}

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t run) {
  require(is_f32(x, 2) && is_f32(weight, 2) && x.size(1) == weight.size(1), Code::kInvalid,
          "kernels: linear_f32_thin's x is ", x.scalar_type(), " ", x.sizes(), ", its weight ",
          weight.scalar_type(), " ", weight.sizes(),
          "; they must be contiguous float32 [m, I] and [O, I]");
  require(!bias.defined() || (is_f32(bias, 1) && bias.size(0) == weight.size(0)), Code::kInvalid,
          "kernels: linear_f32_thin's bias is ", bias.scalar_type(), " ", bias.sizes(),
          ", it must be contiguous float32 [", weight.size(0), "]");
  require(run > 0, Code::kInvalid, "kernels: linear_f32_thin's run is ", run,
          ", it must be at least 1");
  require(linear_f32_thin_is_possible(), Code::kInvalid,
          "kernels: linear_f32_thin takes instructions that this processor lacks");
}

}  // namespace

bool linear_f32_thin_is_possible() { return std::string_view(best_simd().name) != "portable"; }

at::Tensor linear_f32_thin(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           int64_t run) {
  check(x, weight, bias, run);
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  if (inputs == 0) return bias.defined() ? y.copy_(bias.expand_as(y)) : y.zero_();
  const ThinProduct p{.x = x.const_data_ptr<float>(),
                      .w = weight.const_data_ptr<float>(),
                      .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                      .y = y.mutable_data_ptr<float>(),
                      .rows = x.size(0),
                      .outputs = outputs,
                      .inputs = inputs,
                      .run = run};
  const auto loop = best_simd().linear_thin;
  const int64_t grain = std::max<int64_t>(1, 8192 / (inputs * kTile));
  parallel_for(0, (outputs + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    loop(p, begin * kTile, std::min(outputs, end * kTile));
  });
  return y;
}

}  // namespace twinkle::kernels
