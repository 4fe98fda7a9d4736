// The kernels over tensors on a CUDA device. The functions of rms_norm.h, rope.h and swiglu.h come
// here when their tensors lie there, after their own checks. The build links tensors.cpp and the
// .cu files, or absent.cpp, where each throws kInvalid: which one is CMake's choice, never an #if.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/lora/lora.h"
#include "twinkle/kernels/rope.h"
#include "twinkle/kernels/swiglu.h"

namespace twinkle::kernels::cuda {

// Whether this build has the kernels and the machine a device that runs them.
bool available();
// Where the caller's tensors would lie.
at::Device current_device();

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps);
void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum);

// x, out [T, heads, head_dim] contiguous; positions must be in the table: the caller has looked.
void rope(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& position_ids, Turn turn);

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs);

// logits [n, V] contiguous, ids [n] int32, temperature [n] float32 or undefined (1), all on the
// device. Returns [n, 4] (float32; float64 for float64): logprob of the id, entropy, top, sum, as
// in RowStats.
at::Tensor softmax_stats(const at::Tensor& logits, const at::Tensor& ids,
                         const at::Tensor& temperature);
// Rows := grad * (onehot(id) - softmax(row / temperature)) / temperature, in place; grad [n]
// float32.
void softmax_grad_(at::Tensor& logits, const at::Tensor& ids, const at::Tensor& temperature,
                   const at::Tensor& stats, const at::Tensor& grad);

// As lora.h's; the factors must be packed.
at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y);
void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx);

}  // namespace twinkle::kernels::cuda
