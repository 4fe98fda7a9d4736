#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/cuda/device_for_test.h"
#include "twinkle/kernels/optim/update.h"

namespace twinkle::kernels {
namespace {

class UpdateOnDevice : public OnDevice {
 protected:
  // Blocks that end with a tensor, within one, and a tensor of nothing.
  const std::vector<int64_t> sizes_{1, 2048, 0, 2049, 5000, 3};

  static void expect_like(const at::Tensor& device, const at::Tensor& host) {
    EXPECT_TRUE(at::allclose(device.cpu(), host, 1e-5, 1e-6)) << host.sizes();
  }
};

TEST_F(UpdateOnDevice, AdamsStepOfManyTensorsEqualsTheCpu) {
  std::vector<cuda::AdamTensors> host, device;
  for (const int64_t n : sizes_) {
    const float k = static_cast<float>(n % 7 + 1);
    const AdamFactors factors{.scale = 0.5f / k,
                              .l2 = 0.01f * k,
                              .shrink = 0.02f,
                              .first = 0.1f,
                              .second = 0.05f,
                              .keep_second = 0.95f,
                              .root = 0.3f * k,
                              .eps = 1e-8f,
                              .rate = 0.1f};
    host.push_back({factors, at::randn({n}), at::randn({n}), at::randn({n}), at::rand({n})});
    const auto& [f, grad, value, mean, square] = host.back();
    device.push_back({f, on(grad), on(value), on(mean), on(square)});
  }
  cuda::adam_update(device);
  for (size_t i = 0; i < host.size(); ++i) {
    const auto& [f, grad, value, mean, square] = host[i];
    adam_update(f,
                {grad.const_data_ptr<float>(), value.mutable_data_ptr<float>(),
                 mean.mutable_data_ptr<float>(), square.mutable_data_ptr<float>()},
                value.numel());
    expect_like(device[i].value, value);
    expect_like(device[i].mean, mean);
    expect_like(device[i].square, square);
  }
}

TEST_F(UpdateOnDevice, GradientDescentOfManyTensorsEqualsTheCpu) {
  std::vector<cuda::SgdTensors> host, device;
  for (const int64_t n : sizes_) {
    const SgdFactors factors{.scale = 2,
                             .l2 = 0.1f,
                             .momentum = 0.9f,
                             .share = 0.8f,
                             .own = 0.5f,
                             .of_buffer = 0.7f,
                             .rate = 0.3f};
    const bool momentum = n != 2049;
    host.push_back(
        {factors, at::randn({n}), at::randn({n}), momentum ? at::randn({n}) : at::Tensor()});
    const auto& [f, grad, value, buffer] = host.back();
    device.push_back({f, on(grad), on(value), momentum ? on(buffer) : at::Tensor()});
  }
  cuda::sgd_update(device);
  for (size_t i = 0; i < host.size(); ++i) {
    const auto& [f, grad, value, buffer] = host[i];
    sgd_update(f,
               {grad.const_data_ptr<float>(), value.mutable_data_ptr<float>(),
                buffer.defined() ? buffer.mutable_data_ptr<float>() : nullptr},
               value.numel());
    expect_like(device[i].value, value);
    if (buffer.defined()) expect_like(device[i].buffer, buffer);
  }
}

TEST_F(UpdateOnDevice, SquaresAreSummedInFloat64AndDependOnNoNeighbour) {
  std::vector<at::Tensor> host, device;
  for (const int64_t n : sizes_) {
    host.push_back(at::randn({n}));
    device.push_back(on(host.back()));
  }
  const at::Tensor sums = cuda::sums_of_squares(device).cpu();
  for (size_t i = 0; i < host.size(); ++i) {
    const double want = sum_of_squares(host[i].const_data_ptr<float>(), host[i].numel());
    EXPECT_NEAR(sums[i].item<double>(), want, 1e-12 * (1 + want));
    const at::Tensor alone = cuda::sums_of_squares({&device[i], 1}).cpu();
    EXPECT_EQ(alone[0].item<double>(), sums[i].item<double>());
  }
}

TEST_F(UpdateOnDevice, ATensorOfAnotherTypeOrSizeIsNamedAndNothingChanges) {
  const at::Tensor value = on(at::ones({4})), grad = on(at::ones({4}));
  const auto run = [&](const at::Tensor& mean) {
    const cuda::AdamTensors tensors[] = {{{.rate = 1}, grad, value, mean, value}};
    cuda::adam_update(tensors);
  };
  expect_error("a tensor of a step is Float [3] on ", [&] { run(on(at::ones({3}))); });
  expect_error("a tensor of a step is Double [4] on ", [&] { run(value.to(at::kDouble)); });
  EXPECT_TRUE(at::equal(value.cpu(), at::ones({4})));
  cuda::adam_update({});
  cuda::sgd_update({});
  EXPECT_EQ(cuda::sums_of_squares({}).numel(), 0);
}

}  // namespace
}  // namespace twinkle::kernels
