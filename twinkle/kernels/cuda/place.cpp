#include "twinkle/kernels/cuda/place.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::kernels::cuda {

bool available() { return c10::cuda::device_count() > 0; }

at::Device current_device() { return {at::kCUDA, c10::cuda::current_device()}; }

Stream current_stream(const at::Device& device) {
  return c10::cuda::getCurrentCUDAStream(device.index());
}

at::Tensor table_on(const at::Device& device, std::span<const std::byte> bytes) {
  // Pinned memory stays until the copy has read it: its allocator sees to that.
  const at::Tensor host =
      at::empty({std::ssize(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace twinkle::kernels::cuda
