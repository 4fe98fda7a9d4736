// libtwinkle_cuda: the kernels for CUDA with torch's libraries for it, which take 240 MiB of
// memory. So they are a shared library of their own, opened when a device is first asked for; this
// is what passes between the two. Both sides define the functions of cuda.h and graph.h, hidden
// from each other: cuda.cpp's call this table. Internal to kernels/.
#pragma once
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/graph.h"

namespace twinkle::kernels::cuda {

struct Functions {
  decltype(&cuda::available) available;
  decltype(&cuda::current_device) current_device;
  decltype(&cuda::find_device) find_device;
  decltype(&cuda::record) record;
  decltype(&cuda::to_host) to_host;
  decltype(&cuda::rms_norm) rms_norm;
  decltype(&cuda::rms_norm_backward) rms_norm_backward;
  decltype(&cuda::rms_norm_weight_grad) rms_norm_weight_grad;
  decltype(&cuda::rope) rope;
  decltype(&cuda::swiglu) swiglu;
  decltype(&cuda::swiglu_backward) swiglu_backward;
  decltype(&cuda::softmax_stats) softmax_stats;
  decltype(&cuda::softmax_grad_) softmax_grad_;
  decltype(&cuda::lora_forward) lora_forward;
  decltype(&cuda::lora_backward) lora_backward;
  decltype(&cuda::adam_update) adam_update;
  decltype(&cuda::sgd_update) sgd_update;
  decltype(&cuda::sums_of_squares) sums_of_squares;
  decltype(&cuda::attention) attention;
  decltype(&cuda::attention_backward) attention_backward;
  decltype(&cuda::write_pages) write_pages;
  decltype(&cuda::attention_paged) attention_paged;
};

// The library's exports.
extern "C" const Functions* twinkle_cuda_functions();

}  // namespace twinkle::kernels::cuda
