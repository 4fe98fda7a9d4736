#include "twinkle/kernels/linear/grouped.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {
namespace {

at::Tensor dense(const at::Tensor& x, const at::Tensor& w) {
  return x.scalar_type() == at::kFloat ? linear_f32(x, w) : linear_bf16(x, w);
}

// Groups of these sizes, each with a weight of its own.
std::vector<RowGroup> groups_of(const std::vector<int64_t>& sizes, int64_t outputs, int64_t inputs,
                                at::ScalarType type, bool transposed) {
  std::vector<RowGroup> out;
  int64_t row = 0;
  for (const int64_t size : sizes) {
    const at::Tensor w = transposed ? at::randn({inputs, outputs}).to(type).t()
                                    : at::randn({outputs, inputs}).to(type);
    out.push_back({row, row + size, w});
    row += size;
  }
  return out;
}

TEST(GroupedLinear, EachRowHasTheBitsOfItsOwnProduct) {
  at::manual_seed(1);
  const std::vector<int64_t> sizes{0, 1, 9, 0, 130, 2, 17, 14, 46, 3, 0, 107, 128};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool transposed : {false, true}) {
      for (const auto& [outputs, inputs] :
           std::vector<std::pair<int64_t, int64_t>>{{96, 64}, {17, 33}, {300, 130}, {1, 1}}) {
        const auto groups = groups_of(sizes, outputs, inputs, type, transposed);
        const at::Tensor x = at::randn({457, inputs}).to(type);
        at::Tensor y = grouped_linear(x, groups), team;
        with_team([&] { team = grouped_linear(x, groups); });
        EXPECT_TRUE(at::equal(y, team));
        for (const RowGroup& g : groups) {
          const at::Tensor mine = x.narrow(0, g.begin, g.end - g.begin);
          EXPECT_TRUE(at::equal(y.narrow(0, g.begin, g.end - g.begin), dense(mine, g.weight)))
              << type << " " << transposed << " " << outputs << " " << g.begin;
        }
      }
    }
  }
}

TEST(GroupedLinear, RowsHaveTheSameBitsOnOneThreadAndInAnyCompany) {
  at::manual_seed(2);
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    auto groups = groups_of({40, 3, 21}, 100, 80, type, false);
    const at::Tensor x = at::randn({64, 80}).to(type), y = grouped_linear(x, groups);
    at::set_num_threads(1);
    EXPECT_TRUE(at::equal(grouped_linear(x, groups), y));
    at::set_num_threads(threads);
    const RowGroup alone{0, 1, groups[2].weight};
    EXPECT_TRUE(at::equal(grouped_linear(x.narrow(0, 50, 1), {&alone, 1}), y.narrow(0, 50, 1)));
  }
}

// Multiply-adds (of one input) of the thread with the most, of all threads' mean, where each takes
// the next piece as soon as it has done with its own.
double busiest(std::span<const TiledProduct> products, size_t num_threads) {
  std::vector<int64_t> busy(num_threads);
  int64_t all = 0;
  for (const OutputPiece& piece : pieces_of(products, static_cast<int64_t>(num_threads))) {
    const int64_t work = products[piece.product].rows * (piece.last - piece.first);
    *std::ranges::min_element(busy) += work;
    all += work;
  }
  return static_cast<double>(std::ranges::max(busy) * static_cast<int64_t>(num_threads)) /
         static_cast<double>(all);
}

// Rows of each expert: as many of all, few or one of many, most of the first one or of the last.
std::vector<std::vector<int64_t>> routed() {
  std::vector<std::vector<int64_t>> out{std::vector<int64_t>(32, 16), std::vector<int64_t>(8, 3),
                                        std::vector<int64_t>(128, 1), std::vector<int64_t>(32, 5),
                                        std::vector<int64_t>(32, 5),  {}};
  out[3].front() = out[4].back() = 900;
  for (int64_t e = 0; e < 60; ++e) out[5].push_back(1 + e % 7);
  return out;
}

TEST(GroupedLinear, ItsPiecesKeepAllThreadsAsBusyHoweverTheRowsAreSpread) {
  for (const std::vector<int64_t>& rows : routed()) {
    for (const auto& [outputs, tile] :
         std::vector<std::pair<int64_t, int64_t>>{{512, 48}, {512, 16}, {768, 16}, {1408, 48}}) {
      std::vector<TiledProduct> products;
      for (const int64_t count : rows) products.push_back({count, outputs, tile});
      EXPECT_LT(busiest(products, 2), 1.07) << rows.size() << " experts, tile " << tile;
      EXPECT_LT(busiest(products, 4), 1.13) << rows.size() << " experts, tile " << tile;
    }
  }
}

TEST(GroupedLinear, ItsPiecesAreEveryOutputOnceCutAtTiles) {
  const std::vector<TiledProduct> products{{3, 100, 16}, {900, 100, 48}, {1, 1, 16}, {2, 48, 48}};
  for (const int64_t threads : {1, 2, 7}) {
    std::vector<int64_t> next(products.size());
    for (const OutputPiece& piece : pieces_of(products, threads)) {
      EXPECT_EQ(piece.first, next[piece.product]);
      EXPECT_EQ(piece.first % products[piece.product].tile, 0);
      EXPECT_GT(piece.last, piece.first);
      next[piece.product] = piece.last;
    }
    for (size_t i = 0; i < products.size(); ++i) EXPECT_EQ(next[i], products[i].outputs);
  }
}

TEST(GroupedLinear, RefusesGroupsThatDoNotFit) {
  const at::Tensor x = at::randn({5, 4});
  const auto error = [&](std::vector<RowGroup> groups) {
    return invalid_of([&] { grouped_linear(x, groups); });
  };
  const at::Tensor w = at::randn({3, 4});
  EXPECT_EQ(error({{0, 2, w}, {3, 5, w}}),
            "kernels: grouped_linear's rows 3 to 5 have a weight Float [3, 4]; the rows must begin "
            "at 2, the weight must be Float [3, 4]");
  EXPECT_EQ(error({{0, 5, at::randn({4, 3})}}),
            "kernels: grouped_linear's rows 0 to 5 have a weight Float [4, 3]; the rows must begin "
            "at 0, the weight must be Float [4, 4]");
  EXPECT_EQ(error({{0, 2, w}}), "kernels: grouped_linear's groups end at row 2, x has 5");
  EXPECT_EQ(
      invalid_of([&] { grouped_linear(x.to(at::kDouble), {}); }),
      "kernels: grouped_linear's x is Double [5, 4] in 0 groups, it must be contiguous float32 "
      "or bfloat16 [R, I] on the CPU, in one or more");
}

}  // namespace
}  // namespace twinkle::kernels
