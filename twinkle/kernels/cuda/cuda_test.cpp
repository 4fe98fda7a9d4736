#include "twinkle/kernels/cuda/cuda.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/rms_norm.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {
namespace {

// Each kernel against the CPU's, which is tested against formulas. Widths are no multiple of a
// block.
class Cuda : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << "this build or this machine has no CUDA device";
    at::manual_seed(7);
  }
  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }
  void expect_like(const at::Tensor& device, const at::Tensor& host) const {
    const double tolerance = GetParam() == at::kBFloat16 ? 1e-2 : 1e-5;
    EXPECT_TRUE(at::allclose(device.cpu(), host, tolerance, tolerance))
        << (device.cpu() - host).abs().max().item<double>();
  }
};

TEST_P(Cuda, NormAndItsGradientsEqualTheCpu) {
  const at::Tensor x = random({37, 577}), grad = random({37, 577}), weight = random({577});
  const auto on = [](const at::Tensor& t) { return t.to(at::kCUDA); };
  expect_like(rms_norm(on(x), on(weight), 1e-5), rms_norm(x, weight, 1e-5));
  expect_like(rms_norm_backward(on(grad), on(x), on(weight), 1e-5),
              rms_norm_backward(grad, x, weight, 1e-5));
  const auto wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = at::ones({577}, wide), device_sum = on(sum.clone());
  const std::vector<int64_t> cu_seqlens{0, 5, 30, 37};
  rms_norm_weight_grad(grad, x, 1e-5, cu_seqlens, sum);
  rms_norm_weight_grad(on(grad), on(x), 1e-5, cu_seqlens, device_sum);
  expect_like(device_sum, sum);
}

TEST_P(Cuda, RopeTurnsAsTheCpuDoes) {
  const at::Tensor x = random({19, 3, 20}), cos = at::randn({64, 8}), sin = at::randn({64, 8});
  const at::Tensor ids = at::randint(64, {19}, at::kLong);
  for (const Turn turn : {Turn::kForward, Turn::kBackward}) {
    expect_like(rope(x.to(at::kCUDA), cos.to(at::kCUDA), sin.to(at::kCUDA), ids, turn),
                rope(x, cos, sin, ids, turn));
  }
}

TEST_P(Cuda, SwigluAndItsGradientsEqualTheCpu) {
  const at::Tensor gate = random({11, 301}), up = random({11, 301}), grad = random({11, 301});
  const auto on = [](const at::Tensor& t) { return t.to(at::kCUDA); };
  expect_like(swiglu(on(gate), on(up)), swiglu(gate, up));
  const auto device = swiglu_backward(on(grad), on(gate), on(up), SwigluNeeds::kBoth);
  const auto host = swiglu_backward(grad, gate, up, SwigluNeeds::kBoth);
  expect_like(device.gate, host.gate);
  expect_like(device.up, host.up);
}

TEST_P(Cuda, SoftmaxRowsEqualTheCpu) {
  at::Tensor logits = random({9, 1003});
  const at::Tensor ids = at::randint(1003, {9}, at::kInt), temperature = at::rand({9}) + 0.5;
  const at::Tensor grad = at::randn({9});
  at::Tensor device = logits.to(at::kCUDA);
  const auto on = [](const at::Tensor& t) { return t.to(at::kCUDA); };
  const at::Tensor stats = cuda::softmax_stats(device, on(ids), on(temperature));
  cuda::softmax_grad_(device, on(ids), on(temperature), stats, on(grad));
  const at::Tensor back = stats.cpu().to(at::kDouble);
  for (int64_t r = 0; r < 9; ++r) {
    const auto id = ids[r].item<int32_t>();
    const auto t = temperature[r].item<float>();
    const RowStats host = kernels::softmax_stats(logits, r, id, t, true);
    EXPECT_NEAR(back[r][0].item<double>(), host.logprob, 1e-4);
    EXPECT_NEAR(back[r][1].item<double>(), host.entropy, 1e-4);
    softmax_grad_(logits, r, id, t, {host, grad[r].item<float>()});
  }
  expect_like(device, logits);
}

INSTANTIATE_TEST_SUITE_P(Types, Cuda, ::testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& type) { return std::string(toString(type.param)); });

}  // namespace
}  // namespace twinkle::kernels
