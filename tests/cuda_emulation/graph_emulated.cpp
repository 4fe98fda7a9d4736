// A recording of the emulation: the body's launches, run again on the memory that they were given.
#include "twinkle/kernels/cuda/graph.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/device.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

class Recorded final : public Graph {
 public:
  explicit Recorded(Body body) : body_(std::move(body)) {
    const CaptureScope scope(kept_);
    launches_.record(body_);
  }
  void replay() const override { launches_.replay(); }

 private:
  Body body_;
  std::vector<at::Tensor> kept_;
  emulation::Recording launches_;
};

}  // namespace

std::unique_ptr<Graph> record(const at::Device&, Graph::Body body, const Graph*) {
  if (!emulation::failure_of_recordings().empty()) {
    throw std::runtime_error(emulation::failure_of_recordings());
  }
  return std::make_unique<Recorded>(std::move(body));
}

}  // namespace twinkle::kernels::cuda
