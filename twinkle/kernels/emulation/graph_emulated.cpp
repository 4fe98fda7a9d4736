// A recording of the emulation is the body itself, run where nothing may come from the host or go
// there.
#include "twinkle/kernels/cuda/graph.h"

#include <ATen/ATen.h>

#include <vector>

#include "twinkle/kernels/cuda/place.h"
#include "twinkle/kernels/emulation/device.h"

namespace twinkle::kernels::cuda {

struct Graph::Recorded {
  Body body;

  void run() const {
    std::vector<at::Tensor> kept;
    const Keeping keeping(kept);
    const emulation::Apart apart;
    body();
  }
};

Graph::Graph(const at::Device&, Body body) : recorded_(new Recorded{std::move(body)}) {}
Graph::~Graph() = default;
void Graph::replay() const { recorded_->run(); }

}  // namespace twinkle::kernels::cuda
