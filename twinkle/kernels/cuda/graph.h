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
  virtual ~Graph() = default;
  // Queues it all on the device's current stream.
  virtual void replay() const = 0;
};

// Records what `body` queues on the device's current stream; nothing runs. It may call ATen and the
// ops of kernels/ on tensors that it holds; what it allocates is the graph's and has the same
// address at every replay. It must have run once just before, for tables and workspaces, and it
// neither reads from the host nor waits. Backward passes run on the caller's thread. Its exceptions
// pass through. `before`: a graph behind which this one is always replayed; they share their
// memory, of which this body may let go what that one has left.
std::unique_ptr<Graph> record(const at::Device& device, Graph::Body body,
                              const Graph* before = nullptr);

}  // namespace twinkle::kernels::cuda
