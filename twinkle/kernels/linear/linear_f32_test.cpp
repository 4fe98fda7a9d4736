#include "twinkle/kernels/linear/linear_f32.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

// The header's words, one output after the other.
at::Tensor chains(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  const auto in = x.accessor<float, 2>(), weight = w.accessor<float, 2>();
  auto out = y.accessor<float, 2>();
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t o = 0; o < w.size(0); ++o) {
      float total = 0;
      for (int64_t begin = 0; begin < x.size(1); begin += kSumRun) {
        float sum = 0;
        for (int64_t i = begin; i < std::min(x.size(1), begin + kSumRun); ++i) {
          sum = std::fma(in[r][i], weight[o][i], sum);
        }
        total = begin ? total + sum : sum;
      }
      out[r][o] = bias.defined() ? total + bias[o].item<float>() : total;
    }
  }
  return y;
}

struct ProductCase {
  int64_t rows, outputs, inputs;
};

// All loops, with what is left over of rows, outputs, inputs, runs, and blocks of each.
std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> out;
  for (const int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 41, 46}) {
    for (const auto& [outputs, inputs] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 32}, {17, 33}, {48, 128}, {40, 100}, {100, 129}, {70, 300}, {9, 601}}) {
      out.push_back({rows, outputs, inputs});
    }
  }
  for (const int64_t rows : {5, 16, 30, 48, 64, 107, 128})
    out.push_back({rows, 2 * kFewOutputs + 64, 300});  // more than that on each of two threads
  out.push_back({520, 50, 140});
  out.push_back({9, kWideOutputs + 50, kWideGroup + kSumRun + 3});
  out.push_back({kWideRows + 9, 7, kWideGroup + 5});
  return out;
}

at::Tensor transposed(const at::Tensor& w) { return w.t().contiguous().t(); }

TEST(LinearF32, HasTheBitsOfTheNamedOrderOnEveryInstructionSetThatFuses) {
  at::manual_seed(1);
  for (const auto& [rows, outputs, inputs] : product_cases()) {
    const at::Tensor x = at::randn({rows, inputs}), w = at::randn({outputs, inputs});
    for (const at::Tensor& bias : {at::Tensor(), at::randn({outputs})}) {
      const at::Tensor want = chains(x, w, bias);
      for (const Simd* simd : supported_simd()) {
        const at::Tensor y = linear_f32(x, w, bias, *simd),
                         z = linear_f32(x, transposed(w), bias, *simd);
        if (std::string_view(simd->name) == "portable") {
          EXPECT_TRUE(at::allclose(y, want, 1e-4, 1e-4)) << rows << " " << outputs << " " << inputs;
          EXPECT_TRUE(at::equal(y, z)) << rows << " " << outputs << " " << inputs;
          continue;
        }
        EXPECT_TRUE(at::equal(y, want))
            << simd->name << " " << rows << " " << outputs << " " << inputs;
        EXPECT_TRUE(at::equal(z, want))
            << simd->name << " transposed " << rows << " " << outputs << " " << inputs;
      }
    }
  }
}

TEST(LinearF32, ARowHasItsBitsInAnyCompanyOnEveryInstructionSet) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({600, 200}), w = at::randn({130, 200});
  for (const Simd* simd : supported_simd()) {
    const at::Tensor all = linear_f32(x, w, {}, *simd);
    for (int64_t rows = 1; rows < 600; rows += rows < 30 ? 1 : 57) {
      for (const at::Tensor& weight : {w, transposed(w)}) {
        EXPECT_TRUE(at::equal(linear_f32(x.narrow(0, 600 - rows, rows), weight, {}, *simd),
                              all.narrow(0, 600 - rows, rows)))
            << simd->name << " " << rows;
      }
    }
  }
}

TEST(LinearF32, MayBeAddedToWhatIsThere) {
  at::manual_seed(3);
  for (const auto& [rows, outputs, inputs] : product_cases()) {
    const at::Tensor x = at::randn({rows, inputs}), w = at::randn({outputs, inputs});
    const at::Tensor before = at::randn({rows, outputs});
    for (const Simd* simd : supported_simd()) {
      const at::Tensor want = before + linear_f32(x, w, {}, *simd);
      for (const at::Tensor& weight : {w, transposed(w)}) {
        at::Tensor y = before.clone();
        add_linear_f32(y, x, weight, *simd);
        EXPECT_TRUE(at::equal(y, want)) << rows << " " << outputs << " " << inputs;
      }
    }
  }
  at::Tensor y = at::ones({2, 3});
  add_linear_f32(y, at::empty({2, 0}), at::empty({3, 0}));
  EXPECT_TRUE(at::equal(y, at::ones({2, 3})));
}

TEST(LinearF32, ANanOrInfinityReachesItsOwnRowAndOutputAlone) {
  for (const int64_t rows : {8, 30}) {
    at::Tensor x = at::ones({rows, 40}), w = at::ones({50, 40});
    x[3][7] = std::nanf("");
    w[49][20] = INFINITY;
    const at::Tensor bad = linear_f32(x, w).isfinite().logical_not();
    EXPECT_EQ(bad.sum().item<int64_t>(), 50 + rows - 1);
    EXPECT_TRUE(bad[3].all().item<bool>() && bad.select(1, 49).all().item<bool>());
    EXPECT_TRUE(at::equal(linear_f32(x, transposed(w)).isfinite().logical_not(), bad));
  }
}

TEST(LinearF32, WithoutInputsIsTheBias) {
  const at::Tensor x = at::empty({2, 0}), w = at::empty({3, 0}), bias = at::randn({3});
  EXPECT_TRUE(at::equal(linear_f32(x, w, bias), bias.expand({2, 3})));
  EXPECT_TRUE(at::equal(linear_f32(x, w), at::zeros({2, 3})));
}

TEST(LinearF32, RefusesWhatItCannotTake) {
  const at::Tensor x = at::zeros({2, 4}), w = at::zeros({3, 4}), bias = at::zeros({3});
  const auto error = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return error_of([&] { linear_f32(a, b, c); });
  };
  const char* const matrices = "they must be contiguous float32 [m, I] and [O, I], on the CPU";
  EXPECT_NE(error(at::zeros({9, 3}), w, bias).find(matrices), std::string::npos);
  EXPECT_NE(error(x, w.to(at::kDouble), bias).find(matrices), std::string::npos);
  EXPECT_NE(error(at::zeros({4, 2}).t(), w, bias).find(matrices), std::string::npos);
  EXPECT_NE(error(x, at::zeros({3, 8}).narrow(1, 0, 4), bias).find(matrices), std::string::npos);
  at::Tensor y = at::zeros({3, 2});
  EXPECT_NE(error_of([&] {
              add_linear_f32(y, x, w);
            }).find("add_linear_f32's y is Float [3, 2], it must be contiguous float32 [2, 3]"),
            std::string::npos);
  EXPECT_NE(
      error(x, w, at::zeros({4})).find("bias is Float [4], it must be contiguous float32 [3]"),
      std::string::npos);
}

}  // namespace
}  // namespace twinkle::kernels
