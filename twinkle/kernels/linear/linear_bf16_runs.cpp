#include <c10/util/BFloat16.h>

#include <algorithm>

#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/result.h"
#include "twinkle/kernels/linear/run_tiles.h"

namespace twinkle::kernels {
namespace {

// Size of the rows that are widened at a time: a head's gradients are as wide as the vocabulary.
constexpr int64_t kWidenedBytes = 4 << 20;

int64_t rows_at_a_time(int64_t inputs) {
  const int64_t rows = kWidenedBytes / (4 * inputs);
  return rows < 8 ? 8 : rows / 8 * 8;
}

}  // namespace

at::Tensor linear_bf16_runs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Simd& simd) {
  const at::Tensor y = result(x.size(0), weight.size(0), x.options());
  if (y.numel() == 0) return y;
  RunProduct<c10::BFloat16> p{
      .w = weight.const_data_ptr<c10::BFloat16>(),
      .transposed = !weight.is_contiguous(),
      .bias = bias.defined() ? bias.const_data_ptr<c10::BFloat16>() : nullptr,
      .y = y.mutable_data_ptr<c10::BFloat16>(),
      .outputs = weight.size(0),
      .inputs = weight.size(1)};
  for (int64_t row = 0; row < x.size(0); row += p.rows, p.y += p.rows * p.outputs) {
    p.rows = std::min(x.size(0) - row, rows_at_a_time(p.inputs));
    const at::Tensor wide = x.narrow(0, row, p.rows).to(at::kFloat);
    p.x = wide.const_data_ptr<float>();
    run_tiles(p, simd.linear_bf16);
  }
  return y;
}

}  // namespace twinkle::kernels
