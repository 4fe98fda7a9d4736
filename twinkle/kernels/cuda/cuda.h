// The kernels over tensors on a CUDA device. The functions of rms_norm.h, rope.h and swiglu.h call
// these for tensors on a device, after their own checks. The build links tensors.cpp and the .cu
// files, or absent.cpp, where each throws kInvalid: which one is CMake's choice, never an #if.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "twinkle/kernels/attention/attention.h"
#include "twinkle/kernels/lora/lora.h"
#include "twinkle/kernels/optim/update.h"
#include "twinkle/kernels/rope.h"
#include "twinkle/kernels/simd/row_stats.h"
#include "twinkle/kernels/swiglu.h"

namespace twinkle::kernels::cuda {

// True if this build has the kernels and the machine a device that runs them.
bool available();
// True if the ops of kernels/ hand this tensor to the functions below: it is on a CUDA device, or,
// in programs that emulate the kernels, on the emulated one.
bool takes(const at::Tensor& x);
// The device of new tensors.
at::Device current_device();
// The device of that name, "cuda" (the current one) or "cuda:1". Error kInvalid: it is none, or not
// here, with what would help.
at::Device find_device(const std::string& name);

// A copy on the CPU in pinned memory, to which a device writes many times faster. Waits for it.
at::Tensor to_host(const at::Tensor& x);

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps);
void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum);

// x, out [T, heads, head_dim] contiguous; positions must be in the table: the caller has looked.
void rope(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& position_ids, Turn turn, Pairs pairs = Pairs::kHalves);

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs);

// As softmax.h's of a chunk; the entropy is always there. Waits for the device.
void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<RowStats> stats);
void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad, std::span<const float> entropy_grad);

// As lora.h's; the factors must be packed.
at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y);
void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx);

// One pass of an optimizer over the tensors of a step, in one launch; float32, contiguous.
struct AdamTensors {
  AdamFactors factors;
  at::Tensor grad, value, mean, square;
};
struct SgdTensors {
  SgdFactors factors;
  at::Tensor grad, value, buffer;  // buffer undefined: 0
};
void adam_update(std::span<const AdamTensors> tensors);
void sgd_update(std::span<const SgdTensors> tensors);
// [n] float64 on the tensors' device.
at::Tensor sums_of_squares(std::span<const at::Tensor> tensors);

// As attention.h's, of any type. Packed: bfloat16 with a head_dim of at most 256 that is a multiple
// of 8 goes to ATen's flash kernels or to cuDNN (attention_library.h); all else to simple ones of
// our own. Paged: the rows have been checked, and may be on the CPU.
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> cu_seqlens, const AttentionOptions& options);
AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs);
void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v, const PagedRows& rows);
at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options);

}  // namespace twinkle::kernels::cuda
