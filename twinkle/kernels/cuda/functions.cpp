#include "twinkle/kernels/cuda/library.h"

namespace twinkle::kernels::cuda {

extern "C" __attribute__((visibility("default"))) const Functions* twinkle_cuda_functions() {
  static const Functions all{
      .available = available,
      .current_device = current_device,
      .find_device = find_device,
      .record = record,
      .to_host = to_host,
      .rms_norm = rms_norm,
      .rms_norm_backward = rms_norm_backward,
      .rms_norm_weight_grad = rms_norm_weight_grad,
      .rope = rope,
      .swiglu = swiglu,
      .swiglu_backward = swiglu_backward,
      .softmax_stats = softmax_stats,
      .softmax_grad_ = softmax_grad_,
      .lora_forward = lora_forward,
      .lora_backward = lora_backward,
      .adam_update = adam_update,
      .sgd_update = sgd_update,
      .sums_of_squares = sums_of_squares,
      .attention = attention,
      .attention_backward = attention_backward,
      .write_pages = write_pages,
      .attention_paged = attention_paged,
  };
  return &all;
}

}  // namespace twinkle::kernels::cuda
