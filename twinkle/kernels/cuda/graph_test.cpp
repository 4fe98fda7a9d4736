#include "twinkle/kernels/cuda/graph.h"

#include <torch/csrc/autograd/autograd.h>

#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/rope.h"

namespace twinkle::kernels {
namespace {

using CudaGraph = OnDevice;

TEST_F(CudaGraph, ReplaysItsLaunchesOnWhatTheMemoryHoldsByThen) {
  const at::Tensor first = at::randn({7, 3, 20}), second = at::randn({7, 3, 20});
  const at::Tensor table = at::randn({7, 10}), ids = at::arange(7);
  const auto twice = [&](const at::Tensor& x) {
    const at::Tensor once = rope(x, table, table, ids, Turn::kForward);
    return rope(once, table, table, ids, Turn::kForward);
  };
  const at::Tensor x = on(first), y = on(at::zeros_like(first)), angles = on(table), at = on(ids);
  const auto graph = cuda::record(cuda::current_device(), [&] {
    cuda::rope(x, y, angles, angles, at, Turn::kForward);  // on the stream, which is current
    cuda::rope(y, y, angles, angles, at, Turn::kForward);
  });
  EXPECT_EQ(y.count_nonzero().item<int64_t>(), 0) << "recording runs nothing";
  graph->replay();
  EXPECT_TRUE(at::allclose(y.cpu(), twice(first), 1e-5, 1e-5));
  x.copy_(second);
  graph->replay();
  EXPECT_TRUE(at::allclose(y.cpu(), twice(second), 1e-5, 1e-5));
}

TEST_F(CudaGraph, AnErrorOfItsBodyPassesAndTheNextOneIsRecorded) {
  const auto fails = [] { throw std::runtime_error("the body's"); };
  EXPECT_THROW(cuda::record(cuda::current_device(), fails), std::runtime_error);
  EXPECT_NO_THROW(cuda::record(cuda::current_device(), [] {}));
}

TEST_F(CudaGraph, ABackwardPassIsRecordedBehindItsForwardInTheSameMemory) {
  const at::Tensor x = on(at::ones({5})), grad = on(at::full({5}, 2.0f));
  at::Tensor in, out, dx;
  const auto forward = cuda::record(cuda::current_device(), [&] {
    in = x.detach().requires_grad_();
    out = in * in;
  });
  const auto backward = cuda::record(
      cuda::current_device(),
      [&] { dx = torch::autograd::grad({std::exchange(out, {})}, {in}, {grad})[0]; },
      forward.get());
  for (const double value : {3.0, 5.0}) {
    x.fill_(value);
    forward->replay();
    backward->replay();
    EXPECT_TRUE(dx.cpu().equal(at::full({5}, 4 * value, at::kFloat)));
  }
}

}  // namespace
}  // namespace twinkle::kernels
