#include "twinkle/kernels/linear/linear_f32.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

// The header's words, one output after the other.
at::Tensor chains(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, int64_t run) {
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  const auto in = x.accessor<float, 2>(), weight = w.accessor<float, 2>();
  auto out = y.accessor<float, 2>();
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t o = 0; o < w.size(0); ++o) {
      float total = 0;
      for (int64_t begin = 0; begin < x.size(1); begin += run) {
        float sum = 0;
        for (int64_t i = begin; i < std::min(x.size(1), begin + run); ++i) {
          sum = std::fma(in[r][i], weight[o][i], sum);
        }
        total = total + sum;
      }
      out[r][o] = bias.defined() ? total + bias[o].item<float>() : total;
    }
  }
  return y;
}

TEST(LinearF32Thin, HasTheBitsOfTheNamedOrder) {
  if (!linear_f32_thin_is_possible()) GTEST_SKIP() << "this processor does not fuse";
  at::manual_seed(1);
  for (const int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    for (const auto& [outputs, inputs, run] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 1, 1}, {16, 32, 192}, {17, 33, 16}, {40, 100, 7}, {70, 576, 192}, {9, 601, 384}}) {
      const at::Tensor x = at::randn({rows, inputs}), w = at::randn({outputs, inputs});
      for (const at::Tensor& bias : {at::Tensor(), at::randn({outputs})}) {
        EXPECT_TRUE(at::equal(linear_f32_thin(x, w, bias, run), chains(x, w, bias, run)))
            << rows << " " << outputs << " " << inputs << " " << run;
      }
    }
  }
}

TEST(LinearF32Thin, WithoutInputsIsTheBias) {
  if (!linear_f32_thin_is_possible()) GTEST_SKIP() << "this processor does not fuse";
  const at::Tensor x = at::empty({2, 0}), w = at::empty({3, 0}), bias = at::randn({3});
  EXPECT_TRUE(at::equal(linear_f32_thin(x, w, bias, 192), bias.expand({2, 3})));
  EXPECT_TRUE(at::equal(linear_f32_thin(x, w, {}, 192), at::zeros({2, 3})));
}

TEST(LinearF32Thin, RefusesWhatItCannotTake) {
  const at::Tensor x = at::zeros({2, 4}), w = at::zeros({3, 4}), bias = at::zeros({3});
  const auto error = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                        int64_t run) { return error_of([&] { linear_f32_thin(a, b, c, run); }); };
  const char* const matrices = "they must be contiguous float32 [m, I] and [O, I]";
  EXPECT_NE(error(at::zeros({9, 3}), w, bias, 4).find(matrices), std::string::npos);
  EXPECT_NE(error(x, w.to(at::kDouble), bias, 4).find(matrices), std::string::npos);
  EXPECT_NE(error(x, at::zeros({4, 3}).t(), bias, 4).find(matrices), std::string::npos);
  EXPECT_NE(error(x, w, at::zeros({4}), 4)
                .find("bias is Float [4], it must be contiguous float32 "
                      "[3]"),
            std::string::npos);
  EXPECT_NE(error(x, w, bias, 0).find("run is 0, it must be at least 1"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::kernels
