// x W^T + b in bf16 for any number of rows. Each output is one chain of float32 sums over the
// inputs, whatever number of rows there is, so a row has the same bits alone, among hundreds, and
// on any number of threads. A few rows cost one pass over the weights at the speed of memory. m
// rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// Three orders of summation. Two are as a processor's instruction has them, with portable code of
// the same bits for comparison. Pairs: over I in order by pairs, a pair's second product first
// (vdpbf16ps). Tiles: of 32 inputs at a time the even ones' products and the odd ones', each from
// zero in order, then both sums' sum (tdpbf16ps). The processors' instructions take numbers below
// float32's normal ones (1.2e-38), products too, as 0; the portable code does not. Runs, for
// processors without such an instruction: linear_f32's order, of what is widened.
enum class LinearPath { kBest, kPairs, kTiles, kRuns, kPortablePairs, kPortableTiles };

// x [m, I], weight [O, I], or the transposed view of a contiguous [I, O], and bias [O] or
// undefined, all bf16, x and bias contiguous; [m, O] bf16. An output is a sum over I in the path's
// order, then the bias is added; one rounding to bf16. kBest: tiles where the processor and the
// system have them, else pairs, else runs; always runs where ATen is kept from AVX-512
// (ATEN_CPU_CAPABILITY=avx2). Error kInvalid: other shapes, types or layouts, or the processor
// lacks what another path names.
at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                       LinearPath path = LinearPath::kBest);

// True if this processor has the instructions that the path needs.
bool linear_bf16_has(LinearPath path);

// The path of kBest here: "tiles", "pairs" or "runs". Bits are promised among processes with the
// same answer.
std::string_view linear_bf16_best();

// By runs, with the loops of `simd`; unchecked.
at::Tensor linear_bf16_runs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Simd& simd = best_simd());

}  // namespace twinkle::kernels
