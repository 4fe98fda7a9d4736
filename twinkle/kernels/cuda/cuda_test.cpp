#include "twinkle/kernels/cuda/cuda.h"

#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/rms_norm.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {
namespace {

using Cuda = OnDeviceOfType;  // widths are no multiple of a block

TEST_P(Cuda, NormAndItsGradientsEqualTheCpu) {
  const at::Tensor x = random({37, 577}), grad = random({37, 577}), weight = random({577});
  expect_like(cuda::rms_norm(on(x), on(weight), 1e-5), rms_norm(x, weight, 1e-5));
  expect_like(cuda::rms_norm_backward(on(grad), on(x), on(weight), 1e-5),
              rms_norm_backward(grad, x, weight, 1e-5));
  at::Tensor sum = at::ones({577}, wide()), device_sum = on(sum);
  const std::vector<int64_t> cu_seqlens{0, 5, 30, 37};
  rms_norm_weight_grad(grad, x, 1e-5, cu_seqlens, sum);
  cuda::rms_norm_weight_grad(on(grad), on(x), 1e-5, cu_seqlens, device_sum);
  expect_like(device_sum, sum);
}

TEST_P(Cuda, RopeTurnsAsTheCpuDoes) {
  const at::Tensor x = random({19, 3, 20}), cos = at::randn({64, 8}), sin = at::randn({64, 8});
  const at::Tensor ids = at::randint(64, {19}, at::kLong);
  for (const Turn turn : {Turn::kForward, Turn::kBackward}) {
    const at::Tensor want = rope(x, cos, sin, ids, turn), in = on(x), out = at::empty_like(in);
    cuda::rope(in, out, on(cos), on(sin), on(ids), turn);
    expect_like(out, want);
    cuda::rope(in, in, on(cos), on(sin), on(ids), turn);
    expect_like(in, want);
  }
}

TEST_P(Cuda, SwigluAndItsGradientsEqualTheCpu) {
  const at::Tensor gate = random({11, 301}), up = random({11, 301}), grad = random({11, 301});
  expect_like(cuda::swiglu(on(gate), on(up)), swiglu(gate, up));
  const auto device = cuda::swiglu_backward(on(grad), on(gate), on(up), SwigluNeeds::kBoth);
  const auto host = swiglu_backward(grad, gate, up, SwigluNeeds::kBoth);
  expect_like(device.gate, host.gate);
  expect_like(device.up, host.up);
}

TEST_P(Cuda, SoftmaxRowsEqualTheCpu) {
  at::Tensor logits = random({9, 1003});
  const at::Tensor ids = at::randint(1003, {9}, at::kInt), temperature = at::rand({9}) + 0.5;
  const at::Tensor grad = at::randn({9});
  at::Tensor device = on(logits);
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

INSTANTIATE_TEST_SUITE_P(Types, Cuda, kDeviceTypes, name_of_type);

}  // namespace
}  // namespace twinkle::kernels
