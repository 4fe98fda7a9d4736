// What a build without CUDA links in the place of the kernels.
#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::kernels::cuda {
namespace {

[[noreturn]] void absent() {
  fail(Code::kInvalid,
       "kernels: the tensors are on a CUDA device, and this build has no CUDA kernels: build it "
       "where nvcc and a torch with CUDA are found");
}

}  // namespace

bool available() { return false; }
at::Device current_device() { absent(); }

at::Tensor rms_norm(const at::Tensor&, const at::Tensor&, double) { absent(); }
at::Tensor rms_norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  absent();
}
void rms_norm_weight_grad(const at::Tensor&, const at::Tensor&, double, std::span<const int64_t>,
                          at::Tensor&) {
  absent();
}
void rope(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
          const at::Tensor&, Turn) {
  absent();
}
at::Tensor swiglu(const at::Tensor&, const at::Tensor&) { absent(); }
SwigluGrads swiglu_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, SwigluNeeds) {
  absent();
}
at::Tensor softmax_stats(const at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
void softmax_grad_(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                   const at::Tensor&) {
  absent();
}
at::Tensor lora_forward(const at::Tensor&, std::span<const LoraPart>, at::Tensor&) { absent(); }
void lora_backward(const LoraSaved&, std::span<const LoraPart>, at::Tensor&) { absent(); }

}  // namespace twinkle::kernels::cuda
