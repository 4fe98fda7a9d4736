#include "twinkle/kernels/cuda/place.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::kernels::cuda {

bool available() { return c10::cuda::device_count() > 0; }

bool takes(const at::Tensor& x) { return x.is_cuda(); }

at::Device current_device() { return {at::kCUDA, c10::cuda::current_device()}; }

at::Device find_device(const std::string& name) {
  int index = -1;
  const std::string_view number = std::string_view(name).substr(std::min<size_t>(name.size(), 5));
  const auto [end, error] = std::from_chars(number.begin(), number.end(), index);
  const bool numbered = error == std::errc() && end == number.end() && index >= 0;
  require(name == "cuda" || (name.starts_with("cuda:") && numbered), Code::kInvalid,
          "kernels: device is '", name, "', it must be 'cpu', 'cuda' or 'cuda:' and a number");
  const int count = c10::cuda::device_count();
  require(count > 0, Code::kInvalid, "kernels: device is '", name,
          "', this machine has no CUDA device that can be used: look at nvidia-smi, at the "
          "driver's version and at CUDA_VISIBLE_DEVICES, or use 'cpu'");
  require(index < count, Code::kInvalid, "kernels: device is '", name, "', the machine has ", count,
          " CUDA devices, numbered from 0");
  const at::Device device =
      numbered ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)) : current_device();
  cudaDeviceProp known{};
  const cudaError_t status = cudaGetDeviceProperties(&known, device.index());
  require(status == cudaSuccess, Code::kInternal, "kernels: device is '", name,
          "', which does not answer: ", cudaGetErrorString(status));
  require_capability(name, known.name, known.major, known.minor);
  return device;
}

Stream current_stream(const at::Device& device) {
  return c10::cuda::getCurrentCUDAStream(device.index());
}

at::Tensor to_host(const at::Tensor& x) {
  const at::Tensor host = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
  host.copy_(x);
  return host;
}

at::Tensor upload(const at::Device& device, std::span<const std::byte> bytes) {
  // Pinned memory stays until the copy has read it: its allocator sees to that.
  const at::Tensor host =
      at::empty({std::ssize(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace twinkle::kernels::cuda
