// A body of operations that is recorded once and queued again as one: a step of decoding is some
// hundred short launches, whose starts cost more than their work.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace twinkle::kernels::cuda {

class Graph {
 public:
  using Body = std::function<void()>;

  // Records what `body` queues on the device's current stream; nothing runs. It may call ATen and
  // the ops of kernels/ on tensors that it holds; what it allocates is the graph's and lies in the
  // same place at every replay. It must have run once just before, for tables and workspaces, and
  // it neither reads from the host nor waits. Its exceptions pass through.
  Graph(const at::Device& device, Body body);
  ~Graph();

  // Queues it all on the device's current stream.
  void replay() const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace twinkle::kernels::cuda
