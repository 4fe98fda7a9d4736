#include "twinkle/nn/batch_invariance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

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

// A library whose row r is wrong where `wrong` says so, by the number of rows.
Library library_with(const std::function<bool(int64_t rows, int64_t row)>& wrong) {
  return [wrong](at::Tensor& out, const at::Tensor& x, const at::Tensor&, const at::Tensor&) {
    at::Tensor sums = x.select(1, 0).to(at::kDouble);  // in order: as invariant as can be
    for (int64_t i = 1; i < x.size(1); ++i) sums += x.select(1, i);
    double* sum = sums.mutable_data_ptr<double>();
    for (int64_t r = 0; r < x.size(0); ++r) sum[r] += wrong(x.size(0), r) ? 1 : 0;
    out.copy_(sums.unsqueeze(1).expand({x.size(0), out.size(1)}));
  };
}

const Product kSmall{at::kFloat, 6, 3};

using Sizes = std::vector<int64_t>;
Sizes steps(int64_t from, int64_t to) {
  Sizes out;
  for (int64_t n = from; n <= to; n += 16) out.push_back(n);
  return out;
}

Sizes sizes_of(const std::function<bool(int64_t rows, int64_t row)>& wrong) {
  return prove_rows(kSmall, 2, library_with(wrong)).sizes;
}

TEST(RowPlan, HasTheSizesThatHold) {
  EXPECT_EQ(sizes_of([](int64_t rows, int64_t) { return rows < 5; }).front(), 8);
  EXPECT_EQ(sizes_of([](int64_t rows, int64_t) { return rows < 16; }), steps(16, 256));
  EXPECT_EQ(sizes_of([](int64_t, int64_t) { return false; }).front(), 1);
  Sizes want = steps(16, 256);
  std::erase_if(want, [](int64_t n) { return n >= 64 && n < 208; });
  EXPECT_EQ(sizes_of([](int64_t rows, int64_t row) {
              return rows < 16 || (rows >= 64 && rows < 208 && row == rows - 1);
            }),
            want);
}

// 5,000 outputs are nine parts of 512 and one of 392.
TEST(RowPlan, OfManyPartsTwoAndTheLastAreTried) {
  const Product large{at::kFloat, 6, 5000};
  std::mutex mutex;
  std::set<int64_t> widths;
  int64_t outputs = 0;
  const auto note = [&](int64_t wrong) -> Library {
    return [&, wrong](at::Tensor& out, const at::Tensor& x, const at::Tensor&, const at::Tensor&) {
      const std::lock_guard lock(mutex);
      widths.insert(out.size(1));
      outputs = std::max(outputs, out.stride(0));
      out.zero_();
      if (out.size(1) == wrong && x.size(0) < 16) out.fill_(1);
    };
  };
  EXPECT_EQ(prove_rows(large, 2, note(0)).sizes.front(), 1);
  EXPECT_EQ(widths, (std::set<int64_t>{392, 512}));
  EXPECT_EQ(outputs, 2 * 512 + 392);
  for (const int64_t wrong : {392, 512}) {
    const RowPlan plan = prove_rows(large, 2, note(wrong));
    EXPECT_EQ(plan.sizes.front(), 16);
    EXPECT_EQ(plan.part_outputs, 512);
  }
}

TEST(RowPlan, SeesALibraryThatRoundsAnotherWayWithOneThread) {
  const auto wrong = [](int64_t rows, int64_t) { return !at::in_parallel_region() && rows < 3; };
  EXPECT_EQ(sizes_of(wrong).front(), 4);
}

TEST(RowPlan, TakesSmallerPartsWhereTheLastRowsOfLargeOnesDiffer) {
  EXPECT_EQ(sizes_of([](int64_t, int64_t row) { return row >= 70; }),
            (Sizes{1, 2, 4, 8, 16, 32, 48, 64}));
  EXPECT_EQ(sizes_of([](int64_t, int64_t row) { return row % 2 == 1; }), Sizes{1});
}

// For every number of rows, with products that go wrong at every size that the trial did not see.
TEST(RowPlan, TheLibraryIsAskedForSizesThatWereTriedAndForNoOthers) {
  std::set<int64_t> tried, asked;
  std::set<int64_t>* note = &tried;
  std::mutex mutex;
  const Library library = library_with([&](int64_t rows, int64_t) {
    const std::lock_guard lock(mutex);
    note->insert(rows);
    return rows < 3 || rows % 64 == 48 || (note == &asked && !tried.contains(rows));
  });
  const RowPlan plan = prove_rows(kSmall, 2, library);
  note = &asked;
  const auto w = at::zeros({3, 6});
  std::vector<int64_t> counts{4096, 5000};
  for (int64_t rows = 1; rows < 600; ++rows) counts.push_back(rows);
  for (const int64_t rows : counts) {
    const auto x = at::randn({rows, 6});
    const auto y = multiply_in_parts(plan, x, w, {}, 1 + static_cast<int>(rows % 5), library);
    ASSERT_TRUE(at::allclose(y, x.sum(1, true).expand({rows, 3}), 1e-4, 1e-4)) << rows;
  }
  EXPECT_EQ(Sizes(asked.begin(), asked.end()), plan.sizes);
}

TEST(RowPlan, LargeProductsAreCutIntoPartsForEveryThread) {
  std::atomic<int> parts{0};
  const Library library = [&](at::Tensor& out, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&) {
    ++parts;
    EXPECT_LE(out.size(0), 256);
    EXPECT_LE(out.size(1), 512);
    EXPECT_EQ(at::get_num_threads(), 1) << "else it would cut its sums for them";
  };
  const RowPlan plan{steps(16, 256)};
  const auto parts_of = [&](int64_t rows, int64_t outputs, int threads) {
    parts = 0;
    multiply_in_parts(plan, at::zeros({rows, 2}), at::zeros({outputs, 2}), {}, threads, library);
    return parts.load();
  };
  EXPECT_EQ(parts_of(256, 512, 1), 1);
  EXPECT_EQ(parts_of(256, 512, 4), 4);
  EXPECT_EQ(parts_of(1, 512, 4), 1) << "a row is not cut";
  EXPECT_EQ(parts_of(1, 1025, 4), 3);
  EXPECT_EQ(parts_of(1024, 513, 2), 8);
}

TEST(RowPlan, ADevicesProductsAreNotCutForThreadsOfTheCpu) {
  int parts = 0;
  const Library library = [&](at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&) { ++parts; };
  const auto on_device = at::device(at::kMeta);  // shapes alone: no CPU, which is all that counts
  const RowPlan plan{steps(16, 256), 512};
  multiply_in_parts(plan, at::zeros({256, 2}, on_device), at::zeros({512, 2}, on_device), {}, 16,
                    library);
  EXPECT_EQ(parts, 1);
}

TEST(RowPlan, ADeviceTakesAsManyRowsAtOnceAsAreProvedAndPadsALittle) {
  std::vector<int64_t> asked;
  const Library library = [&](at::Tensor&, const at::Tensor& x, const at::Tensor&,
                              const at::Tensor&) { asked.push_back(x.size(0)); };
  const auto of = [&](int64_t rows) {
    asked.clear();
    const auto on_device = at::device(at::kMeta);
    multiply_in_parts({{64, 128, 256, 512, 1024, 2048, 4096}, 512}, at::zeros({rows, 2}, on_device),
                      at::zeros({512, 2}, on_device), {}, 1, library);
    return asked;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(of(1), Sizes{64});
  EXPECT_EQ(of(70), Sizes{128});
  EXPECT_EQ(of(257), (Sizes{256, 64}));
  EXPECT_EQ(of(420), Sizes{512});
  EXPECT_EQ(of(4096), Sizes{4096});
  EXPECT_EQ(of(4097), (Sizes{4096, 64}));
  EXPECT_EQ(of(9000), (Sizes{4096, 4096, 512, 256, 64}));
}

// The engine's default budget of tokens, and twice it.
TEST(BatchInvariantLinear, ARowAmongThousandsHasTheBitsThatItHasAmongFew) {
  at::manual_seed(4);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto x = at::randn({8192, 96}).to(type), w = at::randn({70, 96}).to(type);
    const auto few = batch_invariant_linear(x.narrow(0, 4000, 9), w);
    EXPECT_TRUE(at::equal(batch_invariant_linear(x, w).narrow(0, 4000, 9), few));
    EXPECT_TRUE(
        at::equal(batch_invariant_linear(x.narrow(0, 3000, 4096), w).narrow(0, 1000, 9), few));
    const auto dy = at::randn({8192, 70}).to(type);
    EXPECT_TRUE(at::equal(batch_invariant_linear(dy, w.t()).narrow(0, 8190, 2),
                          batch_invariant_linear(dy.narrow(0, 8190, 2), w.t())));
  }
}

TEST(RowPlan, RefusesALibraryThatDoesNotRepeatItself) {
  std::atomic<int> rows{0};
  const auto error = error_of([&] {
    prove_rows(kSmall, 2, library_with([&](int64_t, int64_t) { return ++rows % 7 == 0; }));
  });
  EXPECT_NE(error.find("nn: the product of rows of 6 Float inputs with 3 outputs gives a row other "
                       "bits in another batch, in parts of any size: results would depend on the "
                       "batch's composition"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("pass deterministic=false"), std::string::npos);
}

TEST(RowPlan, RefusesAProductOfOursWhoseRowsKnowEachOther) {
  const Product product{at::kFloat, 40, 30};
  const auto try_with = [&](const std::function<bool(int64_t rows)>& wrong) {
    return error_of([&] {
      try_rows(product, 2, [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
        const at::Tensor y = batch_invariant_linear(x, w, bias);
        return wrong(x.size(0)) ? y + 1 : y;
      });
    });
  };
  EXPECT_EQ(try_with([](int64_t) { return false; }), "");
  for (const int64_t wrong : {1, 2, 8, 9, 17, 40, 65, 520}) {
    EXPECT_EQ(
        try_with([&](int64_t rows) { return rows == wrong; }),
        "nn: the product of rows of 40 Float inputs with 30 outputs by kernels/linear gives a "
        "row other bits in another batch: results would depend on the batch's composition; pass "
        "deterministic=false to do without")
        << wrong;
  }
  EXPECT_NE(try_with([](int64_t) { return at::get_num_threads() == 1; }), "");
}

TEST(RowPlan, LeavesTheNumberOfThreadsAsItWas) {
  const int before = at::get_num_threads();
  prove_rows(kSmall, before + 1, library_with([](int64_t, int64_t) { return false; }));
  EXPECT_EQ(at::get_num_threads(), before);
}

class BatchInvariance : public testing::TestWithParam<at::ScalarType> {};

TEST_P(BatchInvariance, ARowHasTheSameBitsWhateverTheNumberOfRowsAndThreads) {
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
                                {43, 10},
                                {43, 8},
                                {1, 1}}) {
    const auto x = at::randn({300, in}).to(GetParam()), w = at::randn({out, in}).to(GetParam());
    const auto b = at::randn({out}).to(GetParam());
    const auto whole = batch_invariant_linear(x, w, b), back = batch_invariant_linear(whole, w.t());
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      for (const auto& [from, n] :
           {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {100, 15}, {31, 16}, {3, 100}, {0, 255}}) {
        const auto y = batch_invariant_linear(x.narrow(0, from, n), w, b);
        EXPECT_TRUE(at::equal(y, whole.narrow(0, from, n))) << in << "x" << out << " rows " << n;
        EXPECT_TRUE(at::equal(batch_invariant_linear(y, w.t()), back.narrow(0, from, n)))
            << in << "x" << out << " " << n;
      }
    }
  }
  at::set_num_threads(before);
}

// The types that an engine computes in.
INSTANTIATE_TEST_SUITE_P(Types, BatchInvariance, testing::Values(at::kFloat, at::kBFloat16));

// In float64, whose products are the library's on every processor.
TEST(BatchInvariantLinear, OfTheLibrarysProductsHoldsOrIsRefused) {
  at::manual_seed(8);
  int held = 0;
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{576, 576}, {1536, 96}, {33, 70}}) {
    const auto x = at::randn({300, in}, at::kDouble), w = at::randn({out, in}, at::kDouble);
    at::Tensor whole;
    const std::string error = error_of([&] { whole = batch_invariant_linear(x, w); });
    if (!error.empty()) {
      EXPECT_NE(error.find("gives a row other bits in another batch"), std::string::npos) << error;
      continue;
    }
    ++held;
    EXPECT_TRUE(at::allclose(whole, at::linear(x, w)));
    for (const auto& [from, n] : {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {31, 16}, {3, 100}}) {
      EXPECT_TRUE(
          at::equal(batch_invariant_linear(x.narrow(0, from, n), w), whole.narrow(0, from, n)))
          << in << "x" << out << " rows " << n;
    }
  }
  if (held == 0) GTEST_SKIP() << "the library holds for no shape here";
}

// Two products of which the library, left to itself, computes some numbers of rows in another
// order: on two threads it cuts their long sums.
TEST(BatchInvariantLinear, NoNumberOfRowsGivesARowOtherBits) {
  at::manual_seed(5);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto x = at::randn({1024, 1536}).to(type), w = at::randn({96, 1536}).to(type);
    const auto down = at::randn({1536, 96}).to(type).t();
    const auto want = batch_invariant_linear(x, w), back = batch_invariant_linear(x, down);
    for (int64_t rows = 1; rows < 1024; rows += rows < 40 ? 1 : rows < 300 ? 5 : 97) {
      const auto some = x.narrow(0, 1024 - rows, rows);
      const at::Tensor y = batch_invariant_linear(some, w), z = batch_invariant_linear(some, down);
      ASSERT_TRUE(at::equal(y, want.narrow(0, 1024 - rows, rows))) << type << " " << rows;
      ASSERT_TRUE(at::equal(z, back.narrow(0, 1024 - rows, rows))) << type << " " << rows;
    }
  }
}

TEST(BatchInvariantLinear, AnotherRowsNanStaysThere) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto x = at::ones({90, 33}).to(type), w = at::ones({40, 33}).to(type);
    x[60].fill_(std::nan(""));
    const at::Tensor bad = batch_invariant_linear(x, w).isnan().any(1);
    EXPECT_EQ(bad.sum().item<int64_t>(), 1) << type;
    EXPECT_TRUE(bad[60].item<bool>()) << type;
  }
}

TEST(ThreadInvariantProduct, OfLongSumsHasTheSameBitsOnAnyNumberOfThreads) {
  at::manual_seed(6);
  const int before = at::get_num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [n, length, o] : {std::tuple<int64_t, int64_t, int64_t>{24, 2048, 16},
                                       {33, 1000, 70},
                                       {192, 2048, 576},
                                       {700, 300, 5}}) {
      const auto a = at::randn({length, n}).to(type), b = at::randn({length, o}).to(type);
      const auto before = at::randn({n, o}).to(type == at::kBFloat16 ? at::kFloat : type);
      at::Tensor want = before.clone(), sum = before.clone();
      at::set_num_threads(1);
      add_thread_invariant_product(want, a.t(), b);
      at::set_num_threads(2);
      add_thread_invariant_product(sum, a.t(), b);
      EXPECT_TRUE(at::equal(sum, want)) << type << " " << n;
      EXPECT_TRUE(at::allclose(want.to(at::kDouble),
                               before.to(at::kDouble) + a.to(at::kDouble).t().mm(b.to(at::kDouble)),
                               type == at::kBFloat16 ? 1e-2 : 1e-4, 1e-2))
          << type << " " << n;
    }
  }
  at::set_num_threads(before);
}

TEST(BatchInvariantLinear, IsThePlainProduct) {
  at::manual_seed(3);
  for (const int64_t rows : {0, 1, 5, 40}) {
    const auto x = at::randn({rows, 12}), w = at::randn({5, 12}), b = at::randn({5});
    EXPECT_TRUE(at::allclose(batch_invariant_linear(x, w, b), at::linear(x, w, b), 1e-5, 1e-6));
    const auto y = at::randn({rows, 5});
    EXPECT_TRUE(at::allclose(batch_invariant_linear(y, w.t()), y.mm(w), 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace twinkle::nn
