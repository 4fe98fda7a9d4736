#include "twinkle/kernels/cuda/graph.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

// The default stream cannot be recorded.
c10::cuda::CUDAStream stream_to_record(const at::Device& device) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
}

class Recorded final : public Graph {
 public:
  Recorded(const at::Device& device, Body body, const Recorded* before)
      : device_(device),
        body_(std::move(body)),
        // Autograd runs a function's backward on the stream of its forward: one for both.
        stream_(before ? before->stream_ : stream_to_record(device)) {
    const c10::cuda::CUDAGuard on_device(device);
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
    const c10::cuda::CUDAStreamGuard current(stream_);
    graph_.capture_begin(before ? before->graph_.pool() : at::cuda::MempoolId_t{0, 0},
                         cudaStreamCaptureModeThreadLocal);
    try {
      const CaptureScope scope(kept_);
      body_();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (...) {  // the body's exception is the reason
      }
      throw;
    }
    graph_.capture_end();
  }

  void replay() const override {
    const c10::cuda::CUDAGuard on_device(device_);
    graph_.replay();
  }

 private:
  at::Device device_;
  std::vector<at::Tensor> kept_;  // that the launches read, besides what the body holds
  Body body_;                     // it holds the memory that it reads and writes
  c10::cuda::CUDAStream stream_;
  mutable at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<Graph> record(const at::Device& device, Graph::Body body, const Graph* before) {
  return std::make_unique<Recorded>(device, std::move(body), static_cast<const Recorded*>(before));
}

}  // namespace twinkle::kernels::cuda
