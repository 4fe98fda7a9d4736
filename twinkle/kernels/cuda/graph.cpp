#include "twinkle/kernels/cuda/graph.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {

struct Graph::Recorded {
  at::Device device;
  std::vector<at::Tensor> kept;  // that the launches read, beside what the body holds
  Body body;                     // which holds what it reads and writes
  // Autograd runs a function's backward on the stream of its forward: one for both.
  c10::cuda::CUDAStream stream;
  at::cuda::CUDAGraph graph;
};

Graph::Graph(const at::Device& device, Body body, const Graph* before)
    : recorded_(new Recorded{
          .device = device,
          .kept = {},
          .body = std::move(body),
          // The default stream cannot be recorded.
          .stream = before ? before->recorded_->stream
                           : c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()),
          .graph = {}}) {
  const c10::cuda::CUDAGuard on_device(device);
  c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
  const c10::cuda::CUDAStreamGuard current(recorded_->stream);
  at::cuda::CUDAGraph& graph = recorded_->graph;
  graph.capture_begin(before ? before->recorded_->graph.pool() : at::cuda::MempoolId_t{0, 0},
                      cudaStreamCaptureModeThreadLocal);
  try {
    const Keeping keeping(recorded_->kept);
    recorded_->body();
  } catch (...) {
    try {
      graph.capture_end();
    } catch (...) {  // what the body threw is the reason
    }
    throw;
  }
  graph.capture_end();
}

Graph::~Graph() = default;

void Graph::replay() const {
  const c10::cuda::CUDAGuard on_device(recorded_->device);
  recorded_->graph.replay();
}

}  // namespace twinkle::kernels::cuda
