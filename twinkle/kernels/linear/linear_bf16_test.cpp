#include "twinkle/kernels/linear/linear_bf16.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/linear/linear_f32.h"

namespace twinkle::kernels {
namespace {

at::Tensor random_bf16(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}).to(at::kBFloat16);
}

// A weight in both layouts: [O, I], and as the transposed view of [I, O].
std::vector<at::Tensor> layouts(const at::Tensor& weight) {
  return {weight, weight.t().contiguous().t()};
}

constexpr int64_t kRows[] = {1, 2, 5, 8, 9, 11, 16, 17, 30, 41, 48, 64, 107, 128, 257, 300};

TEST(LinearBf16, IsTheProductForAnySize) {
  at::manual_seed(1);
  for (const int64_t rows : kRows) {
    for (const auto& [outputs, inputs] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 32}, {17, 33}, {40, 100}, {97, 514}}) {
      const at::Tensor x = random_bf16(rows, inputs), w = random_bf16(outputs, inputs);
      const at::Tensor want = at::linear(x.to(at::kDouble), w.to(at::kDouble));
      for (const at::Tensor& weight : layouts(w)) {
        const at::Tensor got = linear_bf16(x, weight).to(at::kDouble);
        // bf16 keeps 8 bits; the sums' own error is far below.
        EXPECT_TRUE(at::allclose(got, want, 1.0 / 256, 1e-4))
            << rows << " " << outputs << " " << inputs;
      }
    }
  }
}

using Paths = std::pair<LinearPath, LinearPath>;  // a processor's and the portable one
class LinearBf16Path : public testing::TestWithParam<Paths> {};

TEST_P(LinearBf16Path, FastAndPortablePathsGiveTheSameBits) {
  const auto [fast, portable] = GetParam();
  if (!linear_bf16_has(fast)) GTEST_SKIP() << "this processor lacks the instructions";
  at::manual_seed(2);
  for (const int64_t rows : kRows) {
    for (const int64_t inputs : {31, 96, 576, 601, 1536}) {
      for (const int64_t outputs : {50, 80, 1104}) {
        // A strip and a rest on each of two threads, of several runs.
        if (outputs > 1024 && inputs != 576) continue;
        const at::Tensor x = random_bf16(rows, inputs), w = random_bf16(outputs, inputs);
        const at::Tensor bias = random_bf16(1, outputs)[0], other = layouts(w)[1];
        const at::Tensor want = linear_bf16(x, w, bias, portable);
        for (const at::Tensor& weight : layouts(w))
          EXPECT_TRUE(at::equal(linear_bf16(x, weight, bias, fast), want))
              << rows << " " << outputs << " " << inputs;
        EXPECT_TRUE(at::equal(linear_bf16(x, other, {}, fast), linear_bf16(x, other, {}, portable)))
            << rows << " " << outputs << " " << inputs;
      }
    }
  }
}

TEST_P(LinearBf16Path, MoreRowsAndInputsThanOnePassTakes) {
  const LinearPath path = GetParam().first;
  if (!linear_bf16_has(path)) GTEST_SKIP() << "this processor lacks the instructions";
  at::manual_seed(5);
  const at::Tensor x = random_bf16(2061, 1500), w = random_bf16(50, 1500);
  for (const at::Tensor& weight : layouts(w)) {
    const at::Tensor all = linear_bf16(x, weight, {}, path);
    for (const int64_t first : {0, 1008, 1023, 1024, 1056, 2047, 2060}) {
      EXPECT_TRUE(
          at::equal(linear_bf16(x.narrow(0, first, 1), weight, {}, path), all.narrow(0, first, 1)))
          << first;
    }
  }
}

// Every number of rows that chooses another loop or another rest, in both layouts.
TEST_P(LinearBf16Path, NoNumberOfRowsGivesARowOtherBits) {
  const LinearPath path = GetParam().first;
  if (!linear_bf16_has(path)) GTEST_SKIP() << "this processor lacks the instructions";
  at::manual_seed(4);
  for (const auto& [outputs, inputs] : std::vector<std::pair<int64_t, int64_t>>{
           {50, 33}, {49, 257}, {17, 1}, {35, 64}, {16, 608}}) {
    const at::Tensor x = random_bf16(530, inputs), w = random_bf16(outputs, inputs);
    for (const at::Tensor& weight : layouts(w)) {
      const at::Tensor all = linear_bf16(x, weight, {}, path);
      for (int64_t rows = 1; rows < 530; ++rows) {
        const int64_t first = 530 - rows;
        ASSERT_TRUE(at::equal(linear_bf16(x.narrow(0, first, rows), weight, {}, path),
                              all.narrow(0, first, rows)))
            << rows << " of " << inputs << " inputs";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, LinearBf16Path,
                         testing::Values(Paths{LinearPath::kPairs, LinearPath::kPortablePairs},
                                         Paths{LinearPath::kTiles, LinearPath::kPortableTiles},
                                         Paths{LinearPath::kRuns, LinearPath::kRuns}),
                         [](const auto& info) {
                           return info.param.first == LinearPath::kTiles   ? "Tiles"
                                  : info.param.first == LinearPath::kPairs ? "Pairs"
                                                                           : "Runs";
                         });

TEST(LinearBf16, RunsAreThoseOfFloat32OnEveryInstructionSet) {
  at::manual_seed(6);
  for (const int64_t rows : kRows) {
    for (const int64_t inputs : {1, 31, 96, 601}) {
      const at::Tensor x = random_bf16(rows, inputs), w = random_bf16(50, inputs);
      for (const at::Tensor& bias : {at::Tensor(), random_bf16(1, 50)[0]}) {
        const at::Tensor b = bias.defined() ? bias.to(at::kFloat) : bias;
        for (const Simd* simd : supported_simd()) {
          const at::Tensor want =
              linear_f32(x.to(at::kFloat), w.to(at::kFloat), b, *simd).to(at::kBFloat16);
          for (const at::Tensor& weight : layouts(w)) {
            EXPECT_TRUE(at::equal(linear_bf16_runs(x, weight, bias, *simd), want))
                << simd->name << " " << rows << " " << inputs;
          }
        }
      }
    }
  }
}

TEST(LinearBf16, ARowsBitsDependOnThatRowAlone) {
  at::manual_seed(3);
  const at::Tensor x = random_bf16(300, 576), w = random_bf16(200, 576);
  const at::Tensor all = linear_bf16(x, w);
  const int threads = at::get_num_threads();
  for (const int count : {threads, 1}) {
    at::set_num_threads(count);
    for (const int64_t rows : kRows) {
      for (const int64_t first : {int64_t{0}, (300 - rows) / 2, 300 - rows}) {
        EXPECT_TRUE(at::equal(linear_bf16(x.narrow(0, first, rows), w), all.narrow(0, first, rows)))
            << rows << " from " << first;
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(LinearBf16, AnotherRowsNanStaysThere) {
  const at::Tensor x = at::ones({9, 33}, at::kBFloat16), w = at::ones({20, 33}, at::kBFloat16);
  x[4].fill_(std::numeric_limits<float>::quiet_NaN());
  for (const LinearPath path :
       {LinearPath::kBest, LinearPath::kPortablePairs, LinearPath::kPortableTiles}) {
    const at::Tensor bad = linear_bf16(x, w, {}, path).isnan().any(1);
    EXPECT_EQ(bad.sum().item<int64_t>(), 1);
    EXPECT_TRUE(bad[4].item<bool>());
  }
}

TEST(LinearBf16, NoInputsLeaveTheBias) {
  const at::Tensor bias = random_bf16(1, 5)[0];
  for (const at::Tensor& weight : layouts(at::empty({5, 0}, at::kBFloat16))) {
    EXPECT_TRUE(at::equal(linear_bf16(random_bf16(40, 0), weight, bias), bias.expand({40, 5})));
  }
}

TEST(LinearBf16, RefusesWhatItCannotMultiply) {
  const at::Tensor x = random_bf16(2, 8), w = random_bf16(3, 8);
  EXPECT_EQ(error_of([&] { linear_bf16(x.to(at::kFloat), w); }),
            "kernels: linear_bf16's x is Float [2, 8], its weight BFloat16 [3, 8]; they must be "
            "contiguous bfloat16 [m, I] and [O, I]");
  EXPECT_EQ(error_of([&] { linear_bf16(x, w.t()); }),
            "kernels: linear_bf16's x is BFloat16 [2, 8], its weight BFloat16 [8, 3]; they must be "
            "contiguous bfloat16 [m, I] and [O, I]");
  EXPECT_EQ(error_of([&] { linear_bf16(x, random_bf16(3, 16).slice(1, 0, 16, 2)); }),
            "kernels: linear_bf16's x is BFloat16 [2, 8], its weight BFloat16 [3, 8]; they must be "
            "contiguous bfloat16 [m, I] and [O, I]");
  EXPECT_EQ(error_of([&] { linear_bf16(x, w, random_bf16(1, 4)[0]); }),
            "kernels: linear_bf16's bias is BFloat16 [4], it must be contiguous bfloat16 [3]");
}

}  // namespace
}  // namespace twinkle::kernels
