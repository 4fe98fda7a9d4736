// What a build without CUDA links in the place of the kernels.
#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/graph.h"
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {
namespace {

[[noreturn]] void absent() {
  fail(Code::kInvalid,
       "kernels: the tensors are on a CUDA device, and this build has no CUDA kernels: build it "
       "where nvcc and a torch with CUDA are found");
}

}  // namespace

bool available() { return false; }
bool takes(const at::Tensor& x) { return x.is_cuda(); }  // and says so
at::Device current_device() { absent(); }
at::Device find_device(const std::string& name) {
  fail(Code::kInvalid, "kernels: device is '", name,
       "', this build knows 'cpu' alone: for 'cuda' build it where nvcc and a torch with CUDA are "
       "found");
}

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
void swiglu(Type, const void*, const void*, int64_t, void*, Stream) { absent(); }
SwigluGrads swiglu_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, SwigluNeeds) {
  absent();
}
void softmax_stats(const at::Tensor&, std::span<const int32_t>, std::span<const float>,
                   std::span<RowStats>) {
  absent();
}
void softmax_grad_(at::Tensor&, std::span<const int32_t>, std::span<const float>,
                   std::span<const RowStats>, std::span<const float>, std::span<const float>) {
  absent();
}

at::Tensor lora_forward(const at::Tensor&, std::span<const LoraPart>, at::Tensor&) { absent(); }
void lora_backward(const LoraSaved&, std::span<const LoraPart>, at::Tensor&) { absent(); }
void adam_update(std::span<const AdamTensors>) { absent(); }
void sgd_update(std::span<const SgdTensors>) { absent(); }
at::Tensor sums_of_squares(std::span<const at::Tensor>) { absent(); }

AttentionResult attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          std::span<const int64_t>, const AttentionOptions&) {
  absent();
}
AttentionGrads attention_backward(const AttentionSaved&, std::span<const int64_t>,
                                  const AttentionOptions&, const AttentionNeeds&) {
  absent();
}
void write_pages(PagedKeys&, const at::Tensor&, const at::Tensor&, const PagedRows&) { absent(); }
at::Tensor attention_paged(const at::Tensor&, const PagedKeys&, const PagedRows&,
                           const AttentionOptions&) {
  absent();
}

struct Graph::Recorded {};
Graph::Graph(const at::Device&, Body, const Graph*) { absent(); }
Graph::~Graph() = default;
void Graph::replay() const { absent(); }

}  // namespace twinkle::kernels::cuda
