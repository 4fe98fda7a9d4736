#include "twinkle/kernels/gemv.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

at::Tensor random_bf16(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}).to(at::kBFloat16);
}

TEST(ThinLinear, IsTheProductForAnySize) {
  at::manual_seed(1);
  for (const int64_t rows : {1, 2, 5, 8, 9, 19}) {
    for (const auto& [outputs, inputs] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 32}, {17, 33}, {40, 100}, {97, 514}}) {
      const at::Tensor x = random_bf16(rows, inputs), w = random_bf16(outputs, inputs);
      const at::Tensor want = at::linear(x.to(at::kDouble), w.to(at::kDouble));
      const at::Tensor got = thin_linear(x, w, {}, 64).to(at::kDouble);
      // bf16 keeps 8 bits; the sums' own error is far below.
      EXPECT_TRUE(at::allclose(got, want, 1.0 / 256, 1e-4))
          << rows << " " << outputs << " " << inputs;
    }
  }
}

TEST(ThinLinear, FastAndPortablePathsGiveTheSameBits) {
  if (!thin_linear_is_fast()) GTEST_SKIP() << "no AVX-512 bf16 here: there is only one path";
  at::manual_seed(2);
  for (const int64_t rows : {1, 3, 8, 11}) {
    for (const int64_t block : {64, 512}) {
      for (const int64_t inputs : {96, 576, 601}) {
        const at::Tensor x = random_bf16(rows, inputs), w = random_bf16(50, inputs);
        const at::Tensor bias = random_bf16(1, 50)[0];
        EXPECT_TRUE(at::equal(thin_linear(x, w, bias, block),
                              thin_linear(x, w, bias, block, GemvPath::kPortable)))
            << rows << " " << block << " " << inputs;
      }
    }
  }
}

TEST(ThinLinear, ARowsBitsDependOnThatRowAlone) {
  at::manual_seed(3);
  const at::Tensor x = random_bf16(20, 576), w = random_bf16(200, 576);
  const at::Tensor all = thin_linear(x, w, {}, 512);
  for (int64_t rows = 1; rows < 20; ++rows) {
    for (int64_t first = 0; first + rows <= 20; ++first) {
      EXPECT_TRUE(
          at::equal(thin_linear(x.narrow(0, first, rows), w, {}, 512), all.narrow(0, first, rows)));
    }
  }
}

TEST(ThinLinear, WithTheBlockThatIsFoundHasTheBitsOfTheLibrarysProduct) {
  at::manual_seed(4);
  for (const auto& [outputs, inputs] :
       std::vector<std::pair<int64_t, int64_t>>{{576, 576}, {192, 576}, {1536, 576}, {576, 1536}}) {
    const std::optional<int64_t> block = find_block(outputs, inputs);
    if (!block) GTEST_SKIP() << "the library sums " << inputs << " inputs in an order of its own";
    const at::Tensor x = random_bf16(300, inputs), w = random_bf16(outputs, inputs);
    for (const at::Tensor& bias : {at::Tensor(), random_bf16(1, outputs)[0] * 30}) {
      const at::Tensor want = at::linear(x, w, bias);
      for (const int64_t rows : {1, 2, 7, 30}) {
        EXPECT_TRUE(at::equal(thin_linear(x.narrow(0, 100, rows), w, bias, *block),
                              want.narrow(0, 100, rows)))
            << outputs << " " << inputs << " " << rows << " bias " << bias.defined();
      }
    }
  }
}

TEST(ThinLinear, RefusesWhatItCannotMultiply) {
  const at::Tensor x = random_bf16(2, 8), w = random_bf16(3, 8);
  EXPECT_EQ(error_of([&] { thin_linear(x.to(at::kFloat), w, {}, 8); }),
            "kernels: thin_linear's x is Float [2, 8], its weight BFloat16 [3, 8]; they must be "
            "contiguous bfloat16 [m, I] and [O, I]");
  EXPECT_EQ(error_of([&] { thin_linear(x, w.t(), {}, 8); }),
            "kernels: thin_linear's x is BFloat16 [2, 8], its weight BFloat16 [8, 3]; they must be "
            "contiguous bfloat16 [m, I] and [O, I]");
  EXPECT_EQ(error_of([&] { thin_linear(x, w, random_bf16(1, 4)[0], 8); }),
            "kernels: thin_linear's bias is BFloat16 [4], it must be contiguous bfloat16 [3]");
  EXPECT_EQ(error_of([&] { thin_linear(x, w, {}, 7); }),
            "kernels: thin_linear's block is 7, it must be even and at least 2");
}

}  // namespace
}  // namespace twinkle::kernels
