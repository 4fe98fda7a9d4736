#include "twinkle/nn/row_invariance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/kernels/linear/linear_bf16.h"

namespace twinkle::nn {
namespace {

// Weights from which fewer rows are tried: a head's, whose rows come in chunks of 512.
constexpr int64_t kLargeWeight = 8 << 20;
// A prime, so that no tile of a product sees the same rows, or outputs, as the next.
constexpr int64_t kPeriod = 61;

class Threads {
 public:
  Threads() : before_(at::get_num_threads()) {}
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// [k, n]; columns repeat, and the second half of the rows undoes the first, in reverse: what is
// left of a sum over k is its rounding. Magnitudes from 2^-8 to 1, so that there is some.
at::Tensor cancelling(int64_t k, int64_t n, double sign, uint64_t key, at::ScalarType type) {
  const int64_t half = k / 2, some = std::min(n, kPeriod);
  const at::Tensor drawn = at::empty({half, some}, at::kDouble);
  double* to = drawn.mutable_data_ptr<double>();
  for (int64_t i = 0; i < half * some; ++i) {
    const uint64_t word = key_of(key, static_cast<uint64_t>(i));
    const double mantissa = 1 + static_cast<double>(word >> 12) * 0x1.0p-52;
    to[i] = std::ldexp(word & 1 ? mantissa : -mantissa, -1 - static_cast<int>(word >> 1 & 7));
  }
  const at::Tensor first = drawn.to(type);
  const at::Tensor middle = at::zeros({k % 2, some}, first.options());
  const at::Tensor all = at::cat({first, middle, first.flip(0) * sign});
  return all.repeat({1, (n + some - 1) / some}).narrow(1, 0, n);
}

// What is tried, and what each row must give.
struct Trial {
  at::Tensor x, weight, bias, want;
  const Library& library;

  at::Tensor multiply(const at::Tensor& some) const { return library(some, weight, bias); }
  bool holds(int64_t from, int64_t rows) const {
    return at::equal(multiply(x.narrow(0, from, rows)), want.narrow(0, from, rows));
  }
  // In the places that differ most in alignment and neighbours.
  bool holds(int64_t rows) const {
    const int64_t last = x.size(0) - rows;
    return holds(last, rows) && (rows > 64 || last < 3 || (holds(0, rows) && holds(3, rows)));
  }
};

int64_t most_rows(const Product& p) { return p.inputs * p.outputs >= kLargeWeight ? 512 : 1024; }

Trial make_trial(const Product& p, const Library& library) {
  const at::Tensor x =
      cancelling(p.inputs, most_rows(p), 1, key_of(1, "rows"), p.type).t().contiguous();
  const at::Tensor w = cancelling(p.inputs, p.outputs, -1, key_of(1, "weight"), p.type);
  const at::Tensor weight = p.transposed ? w.contiguous().t() : w.t().contiguous();
  // Zeros: the path is the one with a bias, the rounding is still in sight.
  const at::Tensor bias = p.bias ? at::zeros({p.outputs}, x.options()) : at::Tensor();
  return {x, weight, bias, library(x, weight, bias), library};
}

std::vector<int64_t> counts_to_try(int threads, bool large) {
  if (large && threads == 1) return {1, 2, 3, 17, 65};
  if (large) return {1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 33, 64, 128};
  if (threads == 1) return {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64, 100, 256};
  return {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13,  14,  15,  16,  17, 24,
          31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 100, 127, 128, 129, 255, 257, 512};
}

// The number of rows from which every count that was tried holds; nothing when the largest do not.
std::optional<int64_t> find_least(const Trial& trial, const std::vector<int>& threads, bool large) {
  int64_t worst = 0;
  for (const int n : threads) {
    at::set_num_threads(n);
    for (const int64_t rows : counts_to_try(n, large)) {
      if (rows > worst && !trial.holds(rows)) worst = rows;
    }
  }
  for (const int64_t least : {1, 2, 4, 8, 16, 32, 64}) {
    if (least > worst) return least;
  }
  return {};
}

at::Tensor padded(const at::Tensor& x, int64_t rows) {
  const at::Tensor out = at::zeros({rows, x.size(1)}, x.options());
  out.narrow(0, 0, x.size(0)).copy_(x);
  return out;
}

// Each tile is a copy, so that its alignment is that of every other.
at::Tensor tiled(const at::Tensor& x, int64_t tile,
                 const std::function<at::Tensor(const at::Tensor&)>& multiply) {
  const int64_t rows = x.size(0);
  std::vector<at::Tensor> out;
  for (int64_t begin = 0; begin < rows || begin == 0; begin += tile) {
    const int64_t n = std::min(tile, rows - begin);
    out.push_back(multiply(padded(x.narrow(0, begin, n), tile)).narrow(0, 0, n));
  }
  return at::cat(out);
}

std::optional<int64_t> find_tile(const Trial& trial, const std::vector<int>& threads) {
  const auto multiply = [&](const at::Tensor& x) { return trial.multiply(x); };
  for (const int64_t tile : {64, 32, 8, 4, 1}) {
    const int64_t rows = 3 * tile + 32;
    const at::Tensor want = tiled(trial.x.narrow(0, 0, rows), tile, multiply);
    bool good = true;
    for (const int n : threads) {
      at::set_num_threads(n);
      for (const int64_t from : {0, 1, 2, 5, 8, 17, 31}) {
        const at::Tensor some = trial.x.narrow(0, from, rows - from);
        good = good && at::equal(tiled(some, tile, multiply), want.narrow(0, from, rows - from));
      }
    }
    if (good) return tile;
  }
  return {};
}

bool is_ours(const at::Tensor& x, const at::Tensor& weight) {
  return x.scalar_type() == at::kBFloat16 && x.is_cpu() && kernels::linear_bf16_is_fast() &&
         (weight.is_contiguous() || weight.t().is_contiguous());
}

}  // namespace

Product Product::of(const at::Tensor& weight, const at::Tensor& bias) {
  return {weight.scalar_type(), weight.size(1), weight.size(0), !weight.is_contiguous(),
          bias.defined()};
}

RowPlan prove_rows(const Product& p, int threads, const Library& library) {
  const at::NoGradGuard no_grad;
  const Threads restore;
  at::set_num_threads(threads);
  const Trial trial = make_trial(p, library);
  RowPlan plan{.most = most_rows(p)};
  const std::vector<int> all{threads, 1};
  if (const auto least = find_least(trial, all, p.inputs * p.outputs >= kLargeWeight)) {
    plan.least = *least;
    return plan;
  }
  const auto tile = find_tile(trial, all);
  require(tile.has_value(), Code::kInternal, "nn: the product of rows of ", p.inputs, " ",
          c10::toString(p.type), " inputs with ", p.outputs,
          p.transposed ? " outputs (backward)" : " outputs",
          " gives a row other bits in other company, padded and tiled too: exactness cannot be "
          "promised here; pass deterministic=false to do without");
  plan.tile = *tile;
  return plan;
}

RowPlan row_plan(const Product& p) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int64_t, int64_t, bool, bool, int>, RowPlan> proven;
  const std::lock_guard lock(mutex);
  const int threads = std::max(2, at::get_num_threads());
  const std::tuple key{
      static_cast<int>(p.type), p.inputs, p.outputs, p.transposed, p.bias, threads};
  const auto known = proven.find(key);
  if (known != proven.end()) return known->second;
  const RowPlan plan = prove_rows(p, threads, plain_linear);
  const bool ours = p.type == at::kBFloat16 && kernels::linear_bf16_is_fast();
  require(!ours || (plan.least == 1 && plan.tile == 0), Code::kInternal,
          "nn: kernels::linear_bf16 gives a row of ", p.inputs, " inputs with ", p.outputs,
          " outputs other bits in other company; pass deterministic=false to do without");
  return proven[key] = plan;
}

at::Tensor multiply_by(const RowPlan& plan, const at::Tensor& x,
                       const std::function<at::Tensor(const at::Tensor&)>& multiply) {
  const int64_t rows = x.size(0);
  if (plan.tile > 0) return tiled(x, plan.tile, multiply);
  if (rows > plan.most) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& piece : x.split(plan.most))
      pieces.push_back(multiply_by(plan, piece, multiply));
    return at::cat(pieces);
  }
  if (rows >= plan.least) return multiply(x);
  return multiply(padded(x, plan.least)).narrow(0, 0, rows).contiguous();
}

at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (is_ours(x, weight)) return kernels::linear_bf16(x.contiguous(), weight, bias);
  return at::linear(x, weight, bias);
}

at::Tensor row_invariant_linear(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias) {
  // Short of a look at its plan, which row_plan keeps trivial. It cuts rows into blocks of 512 by
  // itself, each of which it computes as if it were alone.
  if (is_ours(x, weight)) return kernels::linear_bf16(x.contiguous(), weight, bias);
  return multiply_by(row_plan(Product::of(weight, bias)), x,
                     [&](const at::Tensor& some) { return plain_linear(some, weight, bias); });
}

}  // namespace twinkle::nn
