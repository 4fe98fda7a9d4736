#include <ATen/ATen.h>

#include "tests/cuda_emulation/device.h"
#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {

bool available() { return true; }
bool takes(const at::Tensor& x) { return x.device().type() == emulation::device().type(); }
at::Device current_device() { return emulation::device(); }
at::Device find_device(const std::string& name) {
  require(name == "cuda", Code::kInvalid, "kernels: device is '", name,
          "', here are 'cpu' and 'cuda'");
  return emulation::device();
}
Stream current_stream(const at::Device&) { return nullptr; }
at::Tensor to_host(const at::Tensor& x) { return x.cpu(); }
at::Tensor upload(const at::Device& device, std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {std::ssize(bytes)}, at::kByte)
      .to(device, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace twinkle::kernels::cuda
