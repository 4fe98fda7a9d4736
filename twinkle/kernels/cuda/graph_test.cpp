#include "twinkle/kernels/cuda/graph.h"

#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/swiglu.h"

namespace twinkle::kernels {
namespace {

using CudaGraph = OnDevice;

TEST_F(CudaGraph, ReplaysItsLaunchesOnWhatTheMemoryHoldsByThen) {
  const at::Tensor first = at::randn({7, 100}), second = at::randn({7, 100});
  at::Tensor gate = on(first), up = on(second), y = on(at::zeros({7, 100}));
  const cuda::Graph graph(cuda::current_device(), [&](cuda::Stream stream) {
    cuda::swiglu(cuda::Type::kFloat, gate.const_data_ptr(), up.const_data_ptr(), y.numel(),
                 y.mutable_data_ptr(), stream);
    cuda::swiglu(cuda::Type::kFloat, y.const_data_ptr(), up.const_data_ptr(), y.numel(),
                 y.mutable_data_ptr(), stream);
  });
  EXPECT_TRUE(at::equal(y.cpu(), at::zeros({7, 100}))) << "recording runs nothing";
  graph.replay();
  EXPECT_TRUE(at::allclose(y.cpu(), swiglu(swiglu(first, second), second), 1e-5, 1e-6));
  gate.copy_(second);
  graph.replay();
  EXPECT_TRUE(at::allclose(y.cpu(), swiglu(swiglu(second, second), second), 1e-5, 1e-6));
}

TEST_F(CudaGraph, AnErrorOfItsBodyPassesAndTheNextOneIsRecorded) {
  if (!cuda::current_device().is_cuda()) GTEST_SKIP() << "the emulation records nothing";
  const auto fails = [](cuda::Stream) { throw std::runtime_error("the body's"); };
  EXPECT_THROW(cuda::Graph(cuda::current_device(), fails), std::runtime_error);
  EXPECT_NO_THROW(cuda::Graph(cuda::current_device(), [](cuda::Stream) {}));
}

}  // namespace
}  // namespace twinkle::kernels
