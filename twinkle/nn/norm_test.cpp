#include "twinkle/nn/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace twinkle::nn {
namespace {

TEST(RmsNorm, rows_have_unit_mean_square) {
  const auto packing = pack(std::vector<int64_t>{2, 3});
  const RmsNorm norm{.weight = at::ones({8}), .eps = 0};
  const auto y = rms_norm(at::randn({5, 8}), norm, packing);
  EXPECT_TRUE(at::allclose(y.square().mean(-1), at::ones({5}), 1e-5, 1e-5));
}

}  // namespace
}  // namespace twinkle::nn
