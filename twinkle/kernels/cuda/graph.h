// Launches that are recorded once and queued again as one: a step of decoding is some hundred short
// ones, whose starts cost more than their work. Over CUDA's runtime; knows no tensor but the
// device.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {

class Graph {
 public:
  using Body = std::function<void(Stream)>;

  // Records what `body` queues on the stream that it gets, which is the current one; nothing runs.
  // It may call what launch.h has, on memory that outlives the graph: nothing may allocate device
  // memory, read from the host or wait. Its exceptions pass through.
  Graph(const at::Device& device, const Body& body);
  ~Graph();

  // Queues it all on the device's current stream.
  void replay() const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace twinkle::kernels::cuda
