// cuda.h and graph.h by way of libtwinkle_cuda, which is next to the module or the program.
#include "twinkle/kernels/cuda/cuda.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/graph.h"
#include "twinkle/kernels/cuda/library.h"

namespace twinkle::kernels::cuda {
namespace {

namespace fs = std::filesystem;

struct Library {
  const Functions* functions = nullptr;
  std::string why_not;
};

// The folder of the module or the program that this is part of.
fs::path own_folder() {
  Dl_info unused{};
  link_map* object = nullptr;
  dladdr1(reinterpret_cast<const void*>(&own_folder), &unused, reinterpret_cast<void**>(&object),
          RTLD_DL_LINKMAP);
  const bool is_module = object != nullptr && *object->l_name != '\0';
  return (is_module ? fs::absolute(object->l_name) : fs::read_symlink("/proc/self/exe"))
      .parent_path();
}

Library open_library() {
  const fs::path folder = own_folder();
  for (const fs::path& in : {folder, folder.parent_path()}) {  // the program's is bin/
    const fs::path file = in / "libtwinkle_cuda.so";
    if (!fs::exists(file)) continue;
    void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) return {nullptr, dlerror()};
    void* found = dlsym(opened, "twinkle_cuda_functions");
    return {reinterpret_cast<decltype(&twinkle_cuda_functions)>(found)(), {}};
  }
  return {nullptr,
          "this build has none: build it where nvcc and a torch with CUDA are found (make build)"};
}

const Library& library() {
  static const Library opened = open_library();  // never closed
  return opened;
}

const Functions& functions() {
  require(library().functions != nullptr, Code::kInvalid,
          "kernels: a CUDA device needs libtwinkle_cuda.so: ", library().why_not);
  return *library().functions;
}

void refuse_softcap(const AttentionOptions& options) {
  require(options.softcap == 0, Code::kInvalid, "kernels: attention's softcap is ", options.softcap,
          " on a CUDA device; it runs on the CPU only");
}

}  // namespace

bool available() { return library().functions != nullptr && functions().available(); }
bool takes(const at::Tensor& x) { return x.is_cuda(); }
at::Device current_device() { return functions().current_device(); }
at::Device find_device(const std::string& name) {
  require(library().functions != nullptr, Code::kInvalid, "kernels: device is '", name,
          "', which needs libtwinkle_cuda.so: ", library().why_not);
  return functions().find_device(name);
}
std::unique_ptr<Graph> record(const at::Device& device, Graph::Body body, const Graph* before) {
  return functions().record(device, std::move(body), before);
}

at::Tensor to_host(const at::Tensor& x) { return functions().to_host(x); }

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return functions().rms_norm(x, weight, eps);
}
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps) {
  return functions().rms_norm_backward(grad, x, weight, eps);
}
void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum) {
  functions().rms_norm_weight_grad(grad, x, eps, cu_seqlens, sum);
}
void rope(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& position_ids, Turn turn, Pairs pairs) {
  functions().rope(x, out, cos, sin, position_ids, turn, pairs);
}
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return functions().swiglu(gate, up);
}
SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs) {
  return functions().swiglu_backward(grad, gate, up, needs);
}
void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<RowStats> stats) {
  functions().softmax_stats(logits, ids, temperature, stats);
}
void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad, std::span<const float> entropy_grad) {
  functions().softmax_grad_(logits, ids, temperature, stats, grad, entropy_grad);
}

at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y) {
  return functions().lora_forward(x, parts, y);
}
void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx) {
  functions().lora_backward(saved, parts, dx);
}
void adam_update(std::span<const AdamTensors> tensors) { functions().adam_update(tensors); }
void sgd_update(std::span<const SgdTensors> tensors) { functions().sgd_update(tensors); }
at::Tensor sums_of_squares(std::span<const at::Tensor> tensors) {
  return functions().sums_of_squares(tensors);
}

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> cu_seqlens, const AttentionOptions& options) {
  refuse_softcap(options);
  return functions().attention(q, k, v, cu_seqlens, options);
}
AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs) {
  refuse_softcap(options);
  return functions().attention_backward(saved, cu_seqlens, options, needs);
}
void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v,
                 const PagedRows& rows) {
  functions().write_pages(pages, k, v, rows);
}
at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options) {
  refuse_softcap(options);
  return functions().attention_paged(q, pages, rows, options);
}

}  // namespace twinkle::kernels::cuda
