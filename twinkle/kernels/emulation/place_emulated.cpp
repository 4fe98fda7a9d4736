// The device of the emulation is the CPU.
#include <ATen/ATen.h>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {

bool available() { return true; }
at::Device current_device() { return at::kCPU; }
Stream current_stream(const at::Device&) { return nullptr; }
at::Tensor table_on(const at::Device&, std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {std::ssize(bytes)}, at::kByte)
      .clone();
}

}  // namespace twinkle::kernels::cuda
