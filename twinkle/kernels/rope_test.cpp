#include "twinkle/kernels/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::kernels {
namespace {

class RopeOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  at::Tensor random(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::kDouble).to(GetParam());
  }
  double tolerance() const {
    return GetParam() == at::kDouble ? 1e-12 : GetParam() == at::kFloat ? 1e-6 : 3e-2;
  }
};

struct Table {
  at::Tensor cos, sin;
  Table(int64_t positions, int64_t half) {
    const auto angle = at::arange(positions, at::kFloat).unsqueeze(1) / at::arange(1, half + 1);
    cos = angle.cos(), sin = angle.sin();
  }
};

// Pairs (i, i + half) as complex numbers, multiplied by exp(i angle).
at::Tensor rotated(const at::Tensor& x, const Table& table, const at::Tensor& positions) {
  const int64_t half = table.cos.size(1);
  const auto wide = x.to(at::kDouble);
  const auto pick = [&](const at::Tensor& t) {
    return t.to(at::kDouble).index_select(0, positions.to(at::kLong)).unsqueeze(1);
  };
  const auto z = at::complex(wide.narrow(2, 0, half), wide.narrow(2, half, half)) *
                 at::complex(pick(table.cos), pick(table.sin));
  return at::cat({at::real(z), at::imag(z), wide.slice(2, 2 * half)}, 2);
}

TEST_P(RopeOfType, pairs_of_dims_turn_by_their_angle_and_back) {
  const auto positions = at::tensor({4, 0, 30, 2, 2}, at::kInt);
  for (const Simd* simd : supported_simd()) {
    for (const auto& [dim, half] : {std::pair<int64_t, int64_t>{64, 32}, {64, 20}, {10, 5}}) {
      const Table table(31, half);
      const auto x = random({5, 3, dim});
      const auto y =
          rope(x, table.cos, table.sin, positions, Turn::kForward, Pairs::kHalves, *simd);
      const auto difference = y.to(at::kDouble) - rotated(x, table, positions);
      EXPECT_LT(difference.abs().max().item<double>(), tolerance()) << simd->name << dim;
      const auto back =
          rope(y, table.cos, table.sin, positions, Turn::kBackward, Pairs::kHalves, *simd);
      EXPECT_LT((back - x).abs().max().item<double>(), 4e-6 + 2 * tolerance()) << simd->name << dim;
      auto in_place = x.clone();
      rope_(in_place, table.cos, table.sin, positions, Turn::kForward, Pairs::kHalves, *simd);
      EXPECT_TRUE(at::equal(in_place, y)) << simd->name << dim;
    }
  }
}

// The same rotation of dims in another order.
TEST_P(RopeOfType, neighbours_turn_as_halves_do_when_they_are_brought_together) {
  const auto positions = at::tensor({4, 0, 30, 2, 2}, at::kInt);
  for (const Simd* simd : supported_simd()) {
    for (const auto& [dim, half] :
         {std::pair<int64_t, int64_t>{64, 32}, {64, 20}, {10, 5}, {6, 1}}) {
      const Table table(31, half);
      const auto x = random({5, 3, dim});
      const auto even = at::arange(0, 2 * half, 2), rest = at::arange(2 * half, dim);
      const auto order = at::cat({even, even + 1, rest});
      for (const Turn turn : {Turn::kForward, Turn::kBackward}) {
        const auto y = rope(x, table.cos, table.sin, positions, turn, Pairs::kNeighbours, *simd);
        const auto want = rope(x.index_select(2, order), table.cos, table.sin, positions, turn,
                               Pairs::kHalves, *simd);
        const auto difference = y.index_select(2, order).to(at::kDouble) - want.to(at::kDouble);
        EXPECT_LT(difference.abs().max().item<double>(), tolerance()) << simd->name << dim;
        auto in_place = x.clone();
        rope_(in_place, table.cos, table.sin, positions, turn, Pairs::kNeighbours, *simd);
        EXPECT_TRUE(at::equal(in_place, y)) << simd->name << dim;
        const auto one = rope(x.slice(0, 2, 3), table.cos, table.sin, positions.slice(0, 2, 3),
                              turn, Pairs::kNeighbours, *simd);
        EXPECT_TRUE(at::equal(one, y.slice(0, 2, 3))) << simd->name << dim;
      }
    }
  }
}

TEST_P(RopeOfType, a_token_has_the_same_bits_alone_and_among_others) {
  const Table table(8, 16);
  const auto x = random({6, 2, 40}), positions = at::arange(6);
  const auto y = rope(x, table.cos, table.sin, positions, Turn::kForward);
  for (int64_t t = 0; t < 6; ++t) {
    const auto one = rope(x.slice(0, t, t + 1), table.cos, table.sin, positions.slice(0, t, t + 1),
                          Turn::kForward);
    EXPECT_TRUE(at::equal(one, y.slice(0, t, t + 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(types, RopeOfType, testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Rope, mistakes_are_named_and_change_nothing) {
  const Table table(8, 16);
  auto x = at::ones({2, 1, 32});
  const auto turn = [&](at::Tensor at, const at::Tensor& positions) {
    rope_(at, table.cos, table.sin, positions, Turn::kForward);
  };
  expect_error("position 8 of token 1 is outside the table of 8 positions",
               [&] { turn(x, at::tensor({3, 8})); });
  expect_error("position -1 of token 0", [&] { turn(x, at::tensor({-1, 0})); });
  expect_error("position_ids are [3]", [&] { turn(x, at::arange(3)); });
  expect_error("x is [2, 1, 31]", [&] { turn(at::ones({2, 1, 31}), at::arange(2)); });
  expect_error("is not contiguous", [&] {
    turn(at::ones({2, 32, 1}).transpose(1, 2).expand({2, 2, 32}), at::arange(2));
  });
  EXPECT_TRUE(at::equal(x, at::ones({2, 1, 32})));
}

}  // namespace
}  // namespace twinkle::kernels
