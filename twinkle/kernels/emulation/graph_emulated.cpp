// A recording of the emulation: the body's launches, run again on the memory that they were given.
#include "twinkle/kernels/cuda/graph.h"

#include <ATen/ATen.h>

#include <vector>

#include "twinkle/kernels/cuda/place.h"
#include "twinkle/kernels/emulation/device.h"

namespace twinkle::kernels::cuda {

struct Graph::Recorded {
  Body body;
  std::vector<at::Tensor> kept;
  emulation::Recording launches;
};

Graph::Graph(const at::Device&, Body body, const Graph*)
    : recorded_(new Recorded{.body = std::move(body), .kept = {}, .launches = {}}) {
  const Keeping keeping(recorded_->kept);
  recorded_->launches.record(recorded_->body);
}
Graph::~Graph() = default;
void Graph::replay() const { recorded_->launches.replay(); }

}  // namespace twinkle::kernels::cuda
