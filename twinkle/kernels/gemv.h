// x W^T for a few rows of bf16: the weights are streamed once, all cores together, which is all
// that decoding needs. The sums run in the order in which oneDNN's bf16 product takes them, so that
// a row has the same bits here and in a product of hundreds of rows. m rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace twinkle::kernels {

enum class GemvPath { kBest, kPortable };

// x [m, I], weight [O, I] and bias [O] or undefined, all bf16 and contiguous; [m, O] bf16. Each
// output is summed in float32 over I in blocks of `block`, within a block by pairs, a pair's second
// product first (vdpbf16ps), and the blocks, and the bias, are added in order before the one
// rounding to bf16.
at::Tensor thin_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       int64_t block, GemvPath path = GemvPath::kBest);

// Whether this processor has the instructions that make thin_linear fast.
bool thin_linear_is_fast();

// The block with which thin_linear gives the bits of at::linear for these sizes, from 2 rows up;
// nothing when there is none. Found by trial on operands whose sums cancel, once for each size and
// number of threads; any thread.
std::optional<int64_t> find_block(int64_t outputs, int64_t inputs);

}  // namespace twinkle::kernels
