// For tests of the kernels: tensors on the device that they run on, which is a GPU in kernels_test
// (skipped where there is none) and the emulated device in cuda_emulation_test.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

#include "twinkle/kernels/cuda/cuda.h"

namespace twinkle::kernels {

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << "this build or this machine has no CUDA device";
    at::manual_seed(7);
    // Fresh tensors are filled with NaN: what a kernel does not write shows.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  // A copy, on the CPU too: kernels may write to it.
  static at::Tensor on(const at::Tensor& t) {
    return t.to(t.options().device(cuda::current_device()), false, /*copy=*/true);
  }
};

// Each kernel against the CPU's, which is tested against formulas.
class OnDeviceOfType : public OnDevice, public ::testing::WithParamInterface<at::ScalarType> {
 protected:
  static at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); }
  static at::ScalarType wide() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }
  static double tolerance() { return GetParam() == at::kBFloat16 ? 1e-2 : 1e-5; }
  static void expect_like(const at::Tensor& device, const at::Tensor& host, double tolerance) {
    EXPECT_TRUE(at::allclose(device.cpu(), host, tolerance, tolerance))
        << (device.cpu().to(at::kDouble) - host.to(at::kDouble)).abs().max().item<double>();
  }
  static void expect_like(const at::Tensor& device, const at::Tensor& host) {
    expect_like(device, host, tolerance());
  }
};

inline const auto kDeviceTypes = ::testing::Values(at::kBFloat16, at::kFloat, at::kDouble);
inline std::string name_of_type(const ::testing::TestParamInfo<at::ScalarType>& type) {
  return toString(type.param);
}

}  // namespace twinkle::kernels
