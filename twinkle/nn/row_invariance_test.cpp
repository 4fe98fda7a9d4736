#include "twinkle/nn/row_invariance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// What the library gives, with row r of the product changed as `wrong` says by its number of rows.
Library library_with(const std::function<bool(int64_t rows, int64_t row)>& wrong) {
  return [wrong](const at::Tensor& x, const at::Tensor& w, const at::Tensor&) {
    // Row by row, in double: as invariant as can be.
    at::Tensor y = x.to(at::kDouble).matmul(w.t().to(at::kDouble)).to(at::kFloat);
    y.zero_();
    for (int64_t r = 0; r < x.size(0); ++r) {
      y[r] = x[r].sum();
      if (wrong(x.size(0), r)) y[r] += 1;
    }
    return y;
  };
}

constexpr Product kSmall{at::kFloat, 6, 3};

TEST(RowPlan, PadsToTheNumberOfRowsFromWhichTheLibraryHolds) {
  const auto plan =
      prove_rows(kSmall, 2, library_with([](int64_t rows, int64_t) { return rows < 5; }));
  EXPECT_EQ(plan.least, 8);
  EXPECT_EQ(plan.tile, 0);
  EXPECT_EQ(prove_rows(kSmall, 2, library_with([](int64_t, int64_t) { return false; })).least, 1);
}

TEST(RowPlan, SeesALibraryThatRoundsAnotherWayWithOneThread) {
  const auto plan = prove_rows(kSmall, 2, library_with([](int64_t rows, int64_t) {
                                 return at::get_num_threads() == 1 && rows < 3;
                               }));
  EXPECT_EQ(plan.least, 4);
}

TEST(RowPlan, CutsIntoTilesWhereTheLastRowsOfALargeProductDiffer) {
  const auto plan = prove_rows(kSmall, 2, library_with([](int64_t rows, int64_t row) {
                                 return row >= rows / 4 * 4;  // what is left over by fours
                               }));
  EXPECT_EQ(plan.tile, 64);
}

TEST(RowPlan, TakesSingleRowsWhereARowFeelsItsPlace) {
  const auto plan =
      prove_rows(kSmall, 2, library_with([](int64_t, int64_t row) { return row % 2 == 1; }));
  EXPECT_EQ(plan.tile, 1);
}

TEST(RowPlan, MoreRowsThanWereTriedAreCutSoThatALibraryThatBreaksAtLargeCountsIsNeverAsked) {
  int64_t largest = 0;
  const Library library = library_with([&](int64_t rows, int64_t row) {
    largest = std::max(largest, rows);
    return rows < 3 || (rows > 1024 && row % 3 == 1);
  });
  const RowPlan plan = prove_rows(kSmall, 2, library);
  EXPECT_EQ(plan.least, 4);
  EXPECT_EQ(plan.most, 1024);
  EXPECT_EQ(largest, 1024) << "no larger product than the start-up has tried";
  const auto w = at::zeros({3, 6});
  for (const int64_t rows : {1, 1024, 1025, 4096, 5000}) {
    const auto x = at::randn({rows, 6});
    const auto y = multiply_by(plan, x, [&](const at::Tensor& t) { return library(t, w, {}); });
    ASSERT_EQ(y.size(0), rows);
    EXPECT_TRUE(at::equal(y[rows - 1], x[rows - 1].sum().expand(3)));
    EXPECT_TRUE(at::equal(y[rows / 2], x[rows / 2].sum().expand(3)));
    EXPECT_EQ(largest, 1024);
  }
}

// The engine's default budget of tokens, and twice it.
TEST(RowInvariantLinear, ARowAmongThousandsHasTheBitsThatItHasAmongFew) {
  at::manual_seed(4);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto x = at::randn({8192, 96}).to(type), w = at::randn({70, 96}).to(type);
    const auto few = row_invariant_linear(x.narrow(0, 4000, 9), w);
    EXPECT_TRUE(at::equal(row_invariant_linear(x, w).narrow(0, 4000, 9), few));
    EXPECT_TRUE(
        at::equal(row_invariant_linear(x.narrow(0, 3000, 4096), w).narrow(0, 1000, 9), few));
    const auto dy = at::randn({8192, 70}).to(type);
    EXPECT_TRUE(at::equal(row_invariant_linear(dy, w.t()).narrow(0, 8190, 2),
                          row_invariant_linear(dy.narrow(0, 8190, 2), w.t())));
  }
}

TEST(RowPlan, RefusesALibraryThatDoesNotRepeatItself) {
  int rows = 0;
  const auto error = error_of([&] {
    prove_rows(kSmall, 2, library_with([&](int64_t, int64_t) { return ++rows % 7 == 0; }));
  });
  EXPECT_NE(error.find("nn: the product of rows of 6 Float inputs with 3 outputs gives a row other "
                       "bits in other company"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("pass deterministic=false"), std::string::npos);
}

TEST(RowPlan, LeavesTheNumberOfThreadsAsItWas) {
  const int before = at::get_num_threads();
  prove_rows(kSmall, before + 1, library_with([](int64_t, int64_t) { return false; }));
  EXPECT_EQ(at::get_num_threads(), before);
}

class RowInvariance : public testing::TestWithParam<at::ScalarType> {};

TEST_P(RowInvariance, ARowHasTheSameBitsWhateverTheNumberOfRowsAndThreads) {
  at::manual_seed(2);
  const int before = at::get_num_threads();
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{576, 576},
                                {576, 192},
                                {1536, 576},
                                {576, 4096},
                                {33, 70},
                                {48, 24},
                                {12, 5},
                                {5, 12},
                                {1, 1}}) {
    const auto x = at::randn({300, in}).to(GetParam()), w = at::randn({out, in}).to(GetParam());
    const auto b = at::randn({out}).to(GetParam());
    const auto whole = row_invariant_linear(x, w, b), back = row_invariant_linear(whole, w.t());
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      for (const auto& [from, n] :
           {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {100, 15}, {31, 16}, {3, 100}, {0, 255}}) {
        const auto y = row_invariant_linear(x.narrow(0, from, n), w, b);
        EXPECT_TRUE(at::equal(y, whole.narrow(0, from, n))) << in << "x" << out << " rows " << n;
        EXPECT_TRUE(at::equal(row_invariant_linear(y, w.t()), back.narrow(0, from, n)))
            << in << "x" << out << " " << n;
      }
    }
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Types, RowInvariance,
                         testing::Values(at::kFloat, at::kBFloat16, at::kDouble));

TEST(RowInvariantLinear, IsThePlainProduct) {
  at::manual_seed(3);
  for (const int64_t rows : {0, 1, 5, 40}) {
    const auto x = at::randn({rows, 12}), w = at::randn({5, 12}), b = at::randn({5});
    EXPECT_TRUE(at::allclose(row_invariant_linear(x, w, b), at::linear(x, w, b), 1e-5, 1e-6));
    const auto y = at::randn({rows, 5});
    EXPECT_TRUE(at::allclose(row_invariant_linear(y, w.t()), y.mm(w), 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace twinkle::nn
