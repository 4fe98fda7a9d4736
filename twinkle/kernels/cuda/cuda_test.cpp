#include "twinkle/kernels/cuda/cuda.h"

#include <cmath>
#include <limits>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/cuda/place.h"
#include "twinkle/kernels/rms_norm.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {
namespace {

// Widths are no multiple of a block; some are of the eight elements that a thread reads at once.
using Cuda = OnDeviceOfType;

TEST_P(Cuda, NormAndItsGradientsEqualTheCpu) {
  for (const int64_t width : {577, 128, 584, 2056, 8200}) {
    const at::Tensor x = random({37, width}), grad = random({37, width}), weight = random({width});
    expect_like(cuda::rms_norm(on(x), on(weight), 1e-5), rms_norm(x, weight, 1e-5));
    expect_like(cuda::rms_norm_backward(on(grad), on(x), on(weight), 1e-5),
                rms_norm_backward(grad, x, weight, 1e-5));
    at::Tensor sum = at::ones({width}, wide()), device_sum = on(sum);
    const std::vector<int64_t> cu_seqlens{0, 5, 30, 37};
    rms_norm_weight_grad(grad, x, 1e-5, cu_seqlens, sum);
    cuda::rms_norm_weight_grad(on(grad), on(x), 1e-5, cu_seqlens, device_sum);
    expect_like(device_sum, sum);
  }
}

TEST_P(Cuda, RopeTurnsAsTheCpuDoes) {
  const at::Tensor ids = at::randint(64, {19}, at::kLong);
  for (const auto& [dim, half] : {std::pair(20, 8), std::pair(40, 16), std::pair(32, 16)}) {
    const at::Tensor x = random({19, 3, dim});
    const at::Tensor cos = at::randn({64, half}), sin = at::randn({64, half});
    for (const Pairs pairs : {Pairs::kHalves, Pairs::kNeighbours}) {
      for (const Turn turn : {Turn::kForward, Turn::kBackward}) {
        const at::Tensor want = rope(x, cos, sin, ids, turn, pairs);
        const at::Tensor in = on(x), out = at::empty_like(in);
        cuda::rope(in, out, on(cos), on(sin), on(ids), turn, pairs);
        expect_like(out, want);
        cuda::rope(in, in, on(cos), on(sin), on(ids), turn, pairs);
        expect_like(in, want);
      }
    }
  }
}

TEST_P(Cuda, SwigluAndItsGradientsEqualTheCpu) {
  for (const int64_t width : {301, 304}) {
    const at::Tensor gate = random({11, width}), up = random({11, width});
    const at::Tensor grad = random({11, width});
    expect_like(cuda::swiglu(on(gate), on(up)), swiglu(gate, up));
    const auto device = cuda::swiglu_backward(on(grad), on(gate), on(up), SwigluNeeds::kBoth);
    const auto host = swiglu_backward(grad, gate, up, SwigluNeeds::kBoth);
    expect_like(device.gate, host.gate);
    expect_like(device.up, host.up);
  }
}

TEST_P(Cuda, TheHeadsChunkOfLogitsEqualsTheCpu) {
  const at::Tensor hidden = random({9, 40});
  std::vector<int32_t> ids{0, 1002, 255, 256, 7, 511, 512, 999, 1};
  for (const auto& [tempered, vocab] :
       {std::pair(false, 1003), {true, 1003}, {false, 2056}, {true, 2056}}) {
    const at::Tensor weight = random({vocab, 40}) / 4;
    std::vector<float> temperature, grad{1, -2, 0, 0.5, 3, -1, 1e-3f, 1, 1};
    if (tempered) temperature = {1, 0.5, 2, 0.7f, 1, 3, 1, 0.9f, 1};
    at::Tensor logits = at::mm(hidden, weight.t()), device = on(logits);
    std::vector<RowStats> want(9), got(9);
    softmax_stats(logits, ids, temperature, true, want);
    cuda::softmax_stats(device, ids, temperature, got);
    for (size_t r = 0; r < 9; ++r) {
      EXPECT_NEAR(got[r].logprob, want[r].logprob, 1e-4) << r;
      EXPECT_NEAR(got[r].entropy, want[r].entropy, 1e-4) << r;
      EXPECT_NEAR(got[r].top, want[r].top, 1e-4) << r;
      EXPECT_NEAR(got[r].sum / want[r].sum, 1, 1e-4) << r;
    }
    const std::vector<float> of_entropy{0, 0.5, -1, 0, 2, 0, 0, -3, 1};
    at::Tensor both = logits.clone(), both_on_device = on(both);
    softmax_grad_(both, ids, temperature, want, grad, of_entropy);
    cuda::softmax_grad_(both_on_device, ids, temperature, got, grad, of_entropy);
    expect_like(both_on_device, both);
    softmax_grad_(logits, ids, temperature, want, grad);
    cuda::softmax_grad_(device, ids, temperature, got, grad, {});
    expect_like(device, logits);
    expect_like(at::mm(device, on(weight)), at::mm(logits, weight), 4 * tolerance());
  }
}

TEST_P(Cuda, ALogitThatCannotBeDrawnAndANanAreAsOnTheCpu) {
  at::Tensor logits = random({2, 300});
  logits.select(1, 5).fill_(-std::numeric_limits<double>::infinity());
  logits[1][6] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<int32_t> ids{3, 3};
  std::vector<RowStats> want(2), got(2);
  softmax_stats(logits, ids, {}, true, want);
  cuda::softmax_stats(on(logits), ids, {}, got);
  EXPECT_NEAR(got[0].entropy, want[0].entropy, 1e-4);
  EXPECT_TRUE(std::isnan(want[1].logprob) && std::isnan(got[1].logprob));
  at::Tensor device = on(logits);
  cuda::softmax_grad_(device, ids, {}, got, std::vector<float>{1, 1}, std::vector<float>{1, 1});
  EXPECT_EQ(device.cpu()[0][5].item<double>(), 0);
  EXPECT_TRUE(at::isfinite(device.cpu()[0]).all().item<bool>());
}

TEST_P(Cuda, MistakesAboutAChunkOfLogitsAreNamed) {
  const at::Tensor logits = on(random({2, 8}));
  std::vector<RowStats> stats(2);
  const std::vector<int32_t> ids{1};
  expect_error("softmax's logits are [2, 8] with 1 ids and 0 temperatures",
               [&] { cuda::softmax_stats(logits, ids, {}, stats); });
  expect_error("a tensor is Half, it must be bfloat16",
               [&] { cuda::swiglu(logits.to(at::kHalf), logits.to(at::kHalf)); });
}

TEST_P(Cuda, ThePublicFunctionsSendATensorOfTheDeviceHere) {
  const at::Tensor x = random({6, 32}), w = random({32});
  expect_like(rms_norm(on(x), on(w), 1e-5), rms_norm(x, w, 1e-5));
  expect_like(swiglu(on(x), on(x)), swiglu(x, x));
  const at::Tensor table = at::randn({8, 4}), ids = at::arange(6), heads = x.view({6, 4, 8});
  expect_like(rope(on(heads), on(table), on(table), ids, Turn::kForward),
              rope(heads, table, table, ids, Turn::kForward));
  std::vector<RowStats> want(6), got(6);
  const std::vector<int32_t> targets(6, 3);
  softmax_stats(x, targets, {}, true, want);
  softmax_stats(on(x), targets, {}, true, got);
  EXPECT_NEAR(got[5].logprob, want[5].logprob, 1e-4);
  PagedKeys host = make_pages(1, 4, 8, GetParam()), device{on(host.k), on(host.v)};
  const PagedRows rows{at::zeros({1, 1}, at::kInt), at::zeros({6}, at::kLong), ids};
  write_pages(host, heads, heads, rows);
  write_pages(device, on(heads), on(heads), rows);
  expect_like(attention_paged(on(heads), device, rows, {}), attention_paged(heads, host, rows, {}));
}

INSTANTIATE_TEST_SUITE_P(Types, Cuda, kDeviceTypes, name_of_type);

TEST(CudaCapability, AnOlderDeviceIsRefusedByItsName) {
  cuda::require_capability("cuda", "NVIDIA H200", 9, 0);
  cuda::require_capability("cuda:1", "NVIDIA B200", 10, 0);
  expect_error(
      "device is 'cuda:1', a NVIDIA A100-SXM4-80GB of compute capability 8.0, the kernels "
      "need 9.0 (Hopper) or newer",
      [] { cuda::require_capability("cuda:1", "NVIDIA A100-SXM4-80GB", 8, 0); });
}

}  // namespace
}  // namespace twinkle::kernels
