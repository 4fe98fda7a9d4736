#include "twinkle/nn/gate/sigmoid_gate.h"

#include <gtest/gtest.h>

#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::nn {
namespace {

TEST(SigmoidGate, GradientsEqualFiniteDifferences) {
  for (const int64_t columns : {5, 1}) {
    const at::Tensor x = kernels::leaf({3, 2, 5}), gate = kernels::leaf({3, 2, columns});
    kernels::expect_gradients([&] { return sigmoid_gate(x, gate); }, {x, gate});
  }
}

}  // namespace
}  // namespace twinkle::nn
