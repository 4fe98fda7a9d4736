#include "twinkle/nn/batch_invariance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/simd/team.h"

// A function of torch's bundled MKL; null if torch uses another BLAS.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int num_threads);

namespace twinkle::nn {
namespace {

constexpr int64_t kMaxRows = 256;  // rows of a part on a CPU: more gain nothing
constexpr int64_t kMaxDeviceRows = 8192;
constexpr int64_t kMaxResult = int64_t{1} << 28;  // elements of a part's result on a device
constexpr int64_t kMaxOutputs = 512;  // outputs of a part on a CPU, whose threads take one each
constexpr int64_t kStep = 16;         // steps between the rows of parts that are no thinner
// Weights too large to test at 256 rows: a head's, which gets about 128 rows at a time.
constexpr int64_t kLargeWeight = 8 << 20;
// A prime, so that no tile of a product sees the same rows, or outputs, as the next.
constexpr int64_t kPeriod = 61;
constexpr int64_t kPlaces = 16;  // rows by which a part is moved, at most, to see it elsewhere

class Threads {
 public:
  Threads() : before_(at::get_num_threads()) {}
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// The library uses the calling thread alone while this lives. Within a parallel region it would,
// too, but cut its sums as for several.
class OneThread {
 public:
  // A thread's first at::get_num_threads() sets its number to the program's, here rather than
  // below.
  OneThread() : before_(at::get_num_threads()) {
    omp_set_num_threads(1);
    if (MKL_Set_Num_Threads_Local) mkl_before_ = MKL_Set_Num_Threads_Local(1);
  }
  ~OneThread() {
    omp_set_num_threads(before_);
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(mkl_before_);
  }

 private:
  int before_, mkl_before_ = 0;
};

int64_t parts_of(int64_t whole, int64_t most) { return (whole + most - 1) / most; }
int64_t in_steps(int64_t n) { return parts_of(n, kStep) * kStep; }

// Outputs of every part but the last: the same for any number of rows. A device takes all at once,
// part by part most of it would have nothing to do.
int64_t width_of_parts(int64_t outputs, at::Device device) {
  if (!device.is_cpu()) return std::max<int64_t>(1, outputs);
  return in_steps(parts_of(outputs, parts_of(outputs, kMaxOutputs)));
}

// [k, n]; columns repeat, and the second half of the rows undoes the first, in reverse: what is
// left of a sum over k is its rounding. Magnitudes from 2^-8 to 1, so that there is some.
at::Tensor cancelling(int64_t k, int64_t n, double sign, uint64_t key, const Product& p) {
  const int64_t half = k / 2, some = std::min(n, kPeriod);
  const at::Tensor drawn = at::empty({half, some}, at::kDouble);
  double* to = drawn.mutable_data_ptr<double>();
  for (int64_t i = 0; i < half * some; ++i) {
    const uint64_t word = key_of(key, static_cast<uint64_t>(i));
    const double mantissa = 1 + static_cast<double>(word >> 12) * 0x1.0p-52;
    to[i] = std::ldexp(word & 1 ? mantissa : -mantissa, -1 - static_cast<int>(word >> 1 & 7));
  }
  const at::Tensor first = drawn.to(p.type).to(p.device);
  const at::Tensor middle = at::zeros({k % 2, some}, first.options());
  const at::Tensor all = at::cat({first, middle, first.flip(0) * sign});
  return all.repeat({1, (n + some - 1) / some}).narrow(1, 0, n);
}

// Operands of a test.
struct Operands {
  at::Tensor x, weight, bias;  // x's rows repeat
};

// The library never sees more than a part, and of a vocabulary's hundreds all but the last are
// alike: as wide, and, since their width is a multiple of kStep, as aligned, in the weight and in
// the result. Two and the last one stand for all.
Product without_repeats(Product p) {
  const int64_t width = width_of_parts(p.outputs, p.device), parts = parts_of(p.outputs, width);
  if (parts > 3) p.outputs -= (parts - 3) * width;
  return p;
}

int64_t most_rows(const Product& p) {
  if (!p.device.is_cpu()) {
    const int64_t fit = kMaxResult / std::max(p.inputs, p.outputs) / kMaxRows * kMaxRows;
    return std::clamp(fit, kMaxRows, kMaxDeviceRows);
  }
  return p.inputs * p.outputs >= kLargeWeight ? kMaxRows / 2 : kMaxRows;
}

Operands make_operands(const Product& p, int64_t rows) {
  const at::Tensor x = cancelling(p.inputs, rows, 1, key_of(1, "rows"), p).t().contiguous();
  const at::Tensor w = cancelling(p.inputs, p.outputs, -1, key_of(1, "weight"), p);
  const at::Tensor weight = p.transposed ? w.contiguous().t() : w.t().contiguous();
  if (!p.bias) return {x, weight, {}};
  // So small that the sums' rounding is still in sight.
  const at::Tensor bias = cancelling(2, p.outputs, 1, key_of(1, "bias"), p)[0] * 0x1.0p-24;
  return {x, weight, bias.contiguous()};
}

using Multiply = std::function<at::Tensor(const at::Tensor& x)>;

// Rows of x at which `rows` of them are tried: they differ in neighbours and, where a row is no
// multiple of a vector, in alignment, by which some libraries choose how to sum.
std::vector<int64_t> places(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> out{3};
  if (x.size(1) * x.element_size() % 64 != 0) {
    for (int64_t row = 1; row < (rows > kPeriod ? 3 : kPlaces); ++row) out.push_back(row);
  }
  if (rows <= kPeriod) out.insert(out.end(), {0, x.size(0) - rows});
  return out;
}

// True if `rows` rows have the bits of `want`, those of the first kPeriod rows of x, in every
// place.
bool holds(const at::Tensor& x, const at::Tensor& want, int64_t rows, const Multiply& multiply) {
  return std::ranges::all_of(places(x, rows), [&](int64_t from) {
    const at::Tensor got = multiply(x.narrow(0, from, rows));
    const at::Tensor same =
        (at::arange(rows, want.options().dtype(at::kLong)) + from).remainder(kPeriod);
    return at::equal(got, want.index_select(0, same));
  });
}

std::vector<int64_t> sizes_up_to(int64_t most) {
  std::vector<int64_t> out;
  for (int64_t n = 1; n <= most;) {
    out.push_back(n);
    n += n < kStep || n >= 8 * kMaxRows ? n : n < kMaxRows ? kStep : kMaxRows;
  }
  return out;
}

// Those of the sizes up to `most` that give what `most` gives; none when that does not repeat
// itself.
RowPlan sizes_like(int64_t most, int64_t width, const Operands& in, int threads,
                   const Library& library) {
  const at::Tensor x = in.x.narrow(0, 0, std::max(most, kPeriod) + kPlaces);
  const auto alone = [&](int64_t size) -> Multiply {
    return [&, size](const at::Tensor& some) {
      return multiply_in_parts({{size}, width}, some, in.weight, in.bias, 1, library);
    };
  };
  const auto in_a_team = [&](int64_t size) -> Multiply {
    return [&, size](const at::Tensor& some) {
      at::Tensor y;
      kernels::with_team([&] { y = alone(size)(some); });
      return y;
    };
  };
  at::set_num_threads(threads);
  const at::Tensor some = x.narrow(0, 0, kPeriod), want = alone(most)(some);
  if (!at::equal(alone(most)(some), want)) return {};
  RowPlan plan{.part_outputs = width};
  for (const int64_t size : sizes_up_to(most)) {
    if (holds(x, want, size, alone(size)) &&
        (!x.is_cpu() || holds(x, want, size, in_a_team(size)))) {
      plan.sizes.push_back(size);
    }
  }
  if (plan.sizes.empty() || plan.sizes.back() != most) return {};
  return plan;
}

// True if kernels/linear has a batch-invariant product.
bool is_ours(at::ScalarType type, at::Device device) {
  return device.is_cpu() && (type == at::kFloat || type == at::kBFloat16);
}

bool is_ours(const at::Tensor& x) { return is_ours(x.scalar_type(), x.device()); }

at::Tensor ours(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor w = weight.t().is_contiguous() ? weight : weight.contiguous();
  return x.scalar_type() == at::kFloat ? kernels::linear_f32(x.contiguous(), w, bias)
                                       : kernels::linear_bf16(x.contiguous(), w, bias);
}

// The part of a long side that is tested: a multiple of every loop's tiles, runs and panels, and
// the rest.
int64_t enough(int64_t side) {
  constexpr int64_t kAlike = 1920;
  return side > 2 * kAlike ? kAlike + side % kAlike : side;
}

// A bias that the library adds comes first or last in a sum, depending on a row's place in a tile:
// it is added to the sums here. Not in bfloat16, which would round them before.
void torch_product(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& bias) {
  if (bias.defined() && x.scalar_type() == at::kBFloat16) {
    at::addmm_out(out, bias, x, weight.t());
    return;
  }
  at::mm_out(out, x, weight.t());
  if (bias.defined()) out.add_(bias);
}

// No sizes where not even single rows repeat themselves.
RowPlan sizes_that_hold(const Product& p, int threads, const Library& library) {
  const Threads restore;
  const Operands in = make_operands(without_repeats(p), most_rows(p) + kPlaces);
  std::vector<int64_t> largest{64, 16, 4, 1};
  for (int64_t most = p.device.is_cpu() ? most_rows(p) : kMaxRows; most <= most_rows(p);
       most *= 2) {
    largest.insert(largest.begin(), most);
  }
  RowPlan only_large;  // a row of whose products costs hundreds
  for (const int64_t most : largest) {
    RowPlan plan = sizes_like(most, width_of_parts(p.outputs, p.device), in, threads, library);
    if (plan.sizes.empty()) continue;
    if (plan.sizes.front() <= 2 * kMaxRows) return plan;
    if (only_large.sizes.empty()) only_large = std::move(plan);
  }
  return only_large;
}

// How many rows and outputs the parts of a product have, but for the last ones.
struct Cut {
  int64_t rows, outputs, num_rows, num_outputs;
};

int64_t size_for(const RowPlan& plan, int64_t rows) {
  return *std::lower_bound(plan.sizes.begin(), plan.sizes.end(), rows);
}

Cut cut(const RowPlan& plan, int64_t rows, int64_t outputs, int threads) {
  Cut c{};
  c.outputs = plan.part_outputs > 0 ? plan.part_outputs : width_of_parts(outputs, at::kCPU);
  c.num_outputs = parts_of(outputs, c.outputs);
  const int64_t most = plan.sizes.back();
  const int64_t wanted = std::min(parts_of(threads, c.num_outputs), parts_of(rows, kStep));
  const int64_t pieces = std::max(parts_of(rows, most), wanted);
  c.rows = size_for(plan, std::min(most, parts_of(rows, pieces)));
  c.num_rows = parts_of(rows, c.rows);
  return c;
}

// Rows of the next product of a device, which has so many left to do: what reads a large weight
// once more takes longer than some rows of zeros.
int64_t next_rows(const RowPlan& plan, int64_t left) {
  const auto up = std::ranges::lower_bound(plan.sizes, left);
  const bool fits = up != plan.sizes.end() && *up <= std::max(left + left / 4, kMaxRows);
  return fits || up == plan.sizes.begin() ? *up : *std::prev(up);
}

// In as few products as can be: threads of the CPU have no part in what a device computes.
void multiply_on_device(const RowPlan& plan, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& bias, at::Tensor& y, const Library& library) {
  const at::NoGradGuard no_grad;
  for (int64_t row = 0, rows = x.size(0); row < rows;) {
    const int64_t size = next_rows(plan, rows - row), n = std::min(size, rows - row);
    at::Tensor out = y.narrow(0, row, n);
    if (n == size) {
      library(out, x.narrow(0, row, n), weight, bias);
    } else {
      const at::Tensor padded = at::zeros({size, x.size(1)}, x.options());
      padded.narrow(0, 0, n).copy_(x.narrow(0, row, n));
      at::Tensor all = at::empty({size, y.size(1)}, y.options());
      library(all, padded, weight, bias);
      out.copy_(all.narrow(0, 0, n));
    }
    row += n;
  }
}

using Trial = std::tuple<int, int64_t, int64_t, bool, bool, std::string, int>;

Trial key_of_trial(const Product& p, int threads) {
  return {static_cast<int>(p.type), p.inputs, p.outputs, p.transposed, p.bias,
          p.device.str(),           threads};
}

// Kept for the process: a test's result depends on the processor and the library alone.
struct Tried {
  std::mutex mutex;
  std::map<Trial, RowPlan> plans;
};

Tried& tried_so_far() {
  static Tried tried;
  return tried;
}

}  // namespace

Product Product::of(const at::Tensor& weight, const at::Tensor& bias) {
  return {weight.scalar_type(),    weight.size(1), weight.size(0),
          !weight.is_contiguous(), bias.defined(), weight.device()};
}

void try_rows(Product p, int threads, const Ours& product_of) {
  p.inputs = enough(p.inputs), p.outputs = enough(p.outputs);
  const at::NoGradGuard no_grad;
  const Threads restore;
  const Operands in = make_operands(p, 600);
  const Multiply multiply = [&](const at::Tensor& x) { return product_of(x, in.weight, in.bias); };
  const at::Tensor want = multiply(in.x.narrow(0, 0, kPeriod));
  for (const int n : {threads, 1}) {
    at::set_num_threads(n);
    for (const int64_t rows : {1, 2, 3, 8, 9, 17, 40, 41, 65, 520}) {
      if (n == 1 && rows > 65) continue;
      require(holds(in.x, want, rows, multiply), Code::kInternal, "nn: the product of rows of ",
              p.inputs, " ", c10::toString(p.type), " inputs with ", p.outputs,
              " outputs by kernels/linear gives a row other bits in another batch: results would "
              "depend on the batch's composition; pass deterministic=false to do without");
    }
  }
}

RowPlan prove_rows(const Product& p, int threads, const Library& library) {
  const at::NoGradGuard no_grad;
  RowPlan plan = sizes_that_hold(p, threads, library);
  require(!plan.sizes.empty(), Code::kInternal, "nn: the product of rows of ", p.inputs, " ",
          c10::toString(p.type), " inputs with ", p.outputs,
          p.transposed ? " outputs (backward)" : " outputs",
          " gives a row other bits in another batch, in parts of any size: results would depend on "
          "the batch's composition; pass deterministic=false to do without");
  return plan;
}

RowPlan row_plan(const Product& p) {
  Tried& tried = tried_so_far();
  const std::lock_guard lock(tried.mutex);
  const int threads = std::max(2, at::get_num_threads());
  const auto key = key_of_trial(p, threads);
  const auto known = tried.plans.find(key);
  if (known != tried.plans.end()) return known->second;
  RowPlan plan;
  if (is_ours(p.type, p.device)) {
    try_rows(p, threads, ours);
  } else {
    plan = prove_rows(p, threads, torch_product);
  }
  return tried.plans[key] = plan;
}

bool is_tried(const Product& p) {
  Tried& tried = tried_so_far();
  const std::lock_guard lock(tried.mutex);
  return tried.plans.contains(key_of_trial(p, std::max(2, at::get_num_threads())));
}

at::Tensor multiply_in_parts(const RowPlan& plan, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias, int threads, const Library& library) {
  const int64_t rows = x.size(0), outputs = weight.size(0);
  at::Tensor y = at::empty({rows, outputs}, x.options());
  if (y.numel() == 0) return y;
  if (!x.is_cpu()) {
    multiply_on_device(plan, x, weight, bias, y, library);
    return y;
  }
  const Cut c = cut(plan, rows, outputs, threads);
  const int64_t tail = (c.num_rows - 1) * c.rows;  // where the last part's rows begin
  at::Tensor padded;
  if (const int64_t n = rows - tail, size = size_for(plan, n); size > n) {
    padded = at::zeros({size, x.size(1)}, x.options());
    padded.narrow(0, 0, n).copy_(x.narrow(0, tail, n));
  }
  const auto part = [&](int64_t row, int64_t output) {
    const int64_t n = std::min(c.rows, rows - row), width = std::min(c.outputs, outputs - output);
    at::Tensor out = y.narrow(0, row, n).narrow(1, output, width);
    const at::Tensor w = weight.narrow(0, output, width);
    const at::Tensor b = bias.defined() ? bias.narrow(0, output, width) : bias;
    if (row < tail || !padded.defined()) return library(out, x.narrow(0, row, n), w, b);
    at::Tensor all = at::empty({padded.size(0), width}, y.options());
    library(all, padded, w, b);
    out.copy_(all.narrow(0, 0, n));
  };
  const int64_t num_parts = c.num_rows * c.num_outputs;
  const auto parts = [&](int64_t first, int64_t last) {
    const OneThread alone;
    const at::NoGradGuard no_grad;  // this thread's own
    for (int64_t i = first; i < last; ++i)
      part(i / c.num_outputs * c.rows, i % c.num_outputs * c.outputs);
  };
  if (num_parts == 1) {
    parts(0, num_parts);
    return y;
  }
  // A team's threads take parts as they get free.
  kernels::with_team([&] { kernels::parallel_for(0, num_parts, 1, parts); });
  return y;
}

at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return is_ours(x) ? ours(x, weight, bias) : at::linear(x, weight, bias);
}

at::Tensor batch_invariant_linear(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias) {
  // It cuts rows into blocks by itself, each of which it computes as if it were alone.
  if (is_ours(x)) return ours(x, weight, bias);
  return multiply_in_parts(row_plan(Product::of(weight, bias)), x.contiguous(), weight, bias,
                           at::get_num_threads(), torch_product);
}

void add_thread_invariant_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  // Without instructions for bfloat16 the library's product of it is many times slower.
  const bool widens = a.scalar_type() == at::kBFloat16 && a.is_cpu() &&
                      sum.scalar_type() == at::kFloat && kernels::linear_bf16_best() == "runs";
  if (widens || (a.scalar_type() == at::kFloat && is_ours(a))) {
    return kernels::add_linear_f32(sum, a.to(at::kFloat).contiguous(),
                                   b.to(at::kFloat).contiguous().t());
  }
  if (!a.is_cpu()) {  // there no threads share a sum
    const bool in_float32 = a.is_cuda() && a.scalar_type() == at::kBFloat16;
    sum += in_float32 ? at::mm(a, b, at::kFloat) : at::mm(a, b);
    return;
  }
  RowPlan plan;
  for (int64_t n = kStep; n <= kMaxRows; n += kStep) plan.sizes.push_back(n);
  sum += multiply_in_parts(plan, a, b.t(), {}, 1, torch_product);
}

}  // namespace twinkle::nn
