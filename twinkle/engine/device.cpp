#include "twinkle/engine/device.h"

#include <ATen/Context.h>

#include <algorithm>
#include <filesystem>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::engine {
namespace {

bool has_card() { return std::filesystem::exists("/dev/nvidiactl"); }

}  // namespace

bool is_device_name(const std::string& name) {
  if (name == "cpu" || name == "cuda") return true;
  return name.starts_with("cuda:") && name.size() > 5 &&
         std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

at::Device device_named(const std::string& name) {
  require(is_device_name(name), Code::kInvalid, "engine: device is '", name, "', it must be ",
          kDeviceNames);
  if (name == "cpu") {
    // Torch counts its devices once, at the first backward pass; a later engine may be for the GPU.
    if (has_card()) kernels::cuda::available();
    return at::kCPU;
  }
  const at::Device device = kernels::cuda::find_device(name);
  // A bfloat16 product's sums are float32. cuBLAS may split them by the number of rows, which
  // nn/batch_invariance sees and avoids; only cuBLASLt can be told not to.
  at::globalContext().setAllowBF16ReductionCuBLAS(false, /*allow_splitk=*/true);
  return device;
}

std::string why_not_on(const std::string& cuda) {
  if (!has_card()) return "this machine has no CUDA device";
  try {
    device_named(cuda);
    return {};
  } catch (const Error& e) {
    const std::string text = e.what();
    return text.substr(text.find(": ") + 2);  // without the folder's name
  }
}

DefaultDevice default_device() {
  const std::string why = why_not_on("cuda");
  if (why.empty()) return {"cuda", {}};
  return {"cpu", has_card() ? why : ""};
}

}  // namespace twinkle::engine
