// Where a kernel runs: the device of its tensors, and the stream that work there queues on. Defined
// by place.cpp over CUDA, and by tests/cuda_emulation. Internal to kernels/.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {

Stream current_stream(const at::Device& device);

// A uint8 tensor of these bytes there; `bytes` may go at once, the host does not wait.
at::Tensor upload(const at::Device& device, std::span<const std::byte> bytes);

// The same for bytes that kernels only read. What was uploaded recently is there already: layers
// share their tables, and a step like the one before it uploads none.
at::Tensor table_on(const at::Device& device, std::span<const std::byte> bytes);

template <class Row>
at::Tensor table_on(const at::Device& device, std::span<const Row> rows) {
  return table_on(device, std::as_bytes(rows));
}

// While it lives, this thread's launches are recorded: what they read and their caller does not
// hold goes to `tensors`, and a table that would have to be uploaded is an error. Backward passes
// run on this thread, too, where autograd has one for each device otherwise.
class CaptureScope {
 public:
  explicit CaptureScope(std::vector<at::Tensor>& tensors);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  const bool threads_;  // autograd's setting, before
};
void keep(const at::Tensor& x);  // nothing, without a CaptureScope

// Makes the tensor's device the current one until its end.
struct StreamGuard {
  explicit StreamGuard(const at::Tensor& x)
      : guard(x.device()), device(x.device()), stream(current_stream(device)) {}
  c10::DeviceGuard guard;
  at::Device device;
  Stream stream;
};

// Error kInvalid: a device that the kernels are not compiled for. They are for sm_90a, and as PTX
// of compute_90 that later ones compile when they load it (cmake/cuda.cmake).
inline void require_capability(const std::string& device, const std::string& model, int major,
                               int minor) {
  require(major >= 9, Code::kInvalid, "kernels: device is '", device, "', a ", model,
          " of compute capability ", major, ".", minor,
          ", the kernels need 9.0 (Hopper) or newer: use 'cpu' or another device");
}

Type type_of(const at::Tensor& x);
// float64 for float64, else float32: what `x` is computed in.
at::ScalarType wide_of(const at::Tensor& x);

}  // namespace twinkle::kernels::cuda
