#include "twinkle/kernels/cuda/graph.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  require(error == cudaSuccess, Code::kInternal, "kernels: a CUDA graph ", what, ": ",
          cudaGetErrorString(error));
}

// Ends the recording of a stream however its body ends.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "was not begun");
  }
  ~Capture() {
    if (!ended_) cudaStreamEndCapture(stream_, &graph_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t end() {
    ended_ = true;
    check(cudaStreamEndCapture(stream_, &graph_), "was not recorded");
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool ended_ = false;
};

}  // namespace

struct Graph::Recorded {
  at::Device device;
  cudaGraphExec_t executable = nullptr;

  ~Recorded() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }
};

Graph::Graph(const at::Device& device, const Body& body)
    : recorded_(std::make_unique<Recorded>(device)) {
  const c10::cuda::CUDAGuard on_device(device);
  // The default stream cannot be recorded.
  const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  const c10::cuda::CUDAStreamGuard current(stream);
  Capture capture(stream);
  body(stream);
  check(cudaGraphInstantiate(&recorded_->executable, capture.end(), 0), "was not made");
}

Graph::~Graph() = default;

void Graph::replay() const {
  const c10::cuda::CUDAGuard on_device(recorded_->device);
  check(cudaGraphLaunch(recorded_->executable, current_stream(recorded_->device)), "did not start");
}

}  // namespace twinkle::kernels::cuda
