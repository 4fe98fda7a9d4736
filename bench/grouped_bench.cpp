// How fast per multiply-add is the experts' grouped product compared with a dense one? Usage:
// grouped_bench [experts [outputs [inputs [rounds]]]]. For 16, 64 and 256 rows an expert, float32
// and bfloat16, forward (x W^T) and backward (dy W): billions of multiply-adds a second of one
// dense product of all rows with one expert's weight, of dense products of each expert's rows with
// its weight, and of the grouped one, taken in turn, the best of the rounds of each; and what the
// last is of the first two. The first reads one weight for all rows, the others read each. The
// experts' weights lie in huge pages, as a loaded model's do (model/weights/weight_memory.h).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "twinkle/base/huge_pages.h"
#include "twinkle/kernels/linear/grouped.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_f32.h"
#include "twinkle/kernels/simd/team.h"

namespace {

using twinkle::kernels::RowGroup;

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  twinkle::kernels::with_team(run);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

at::Tensor dense(const at::Tensor& x, const at::Tensor& w) {
  return x.scalar_type() == at::kFloat ? twinkle::kernels::linear_f32(x, w)
                                       : twinkle::kernels::linear_bf16(x, w);
}

at::Tensor drawn(at::IntArrayRef shape, at::ScalarType type) {
  const at::Tensor out = at::empty(shape, type);
  twinkle::use_huge_pages(out.mutable_data_ptr(), static_cast<int64_t>(out.nbytes()));
  return out.copy_(at::randn(shape));
}

struct Sizes {
  int64_t experts, outputs, inputs, rounds;
};

void compare(const Sizes& s, int64_t rows, at::ScalarType type, bool transposed) {
  const at::Tensor x = at::randn({s.experts * rows, s.inputs}).to(type);
  const at::Tensor stack = drawn(transposed ? at::IntArrayRef{s.experts, s.inputs, s.outputs}
                                            : at::IntArrayRef{s.experts, s.outputs, s.inputs},
                                 type);
  std::vector<RowGroup> groups;
  for (int64_t e = 0; e < s.experts; ++e) {
    const at::Tensor w = stack.select(0, e);
    groups.push_back({e * rows, (e + 1) * rows, transposed ? w.t() : w});
  }
  double one = 1e9, each = 1e9, many = 1e9;
  for (int64_t i = 0; i < s.rounds; ++i) {
    one = std::min(one, seconds_of([&] { dense(x, groups[0].weight); }));
    each = std::min(each, seconds_of([&] {
                      for (const RowGroup& g : groups) dense(x.slice(0, g.begin, g.end), g.weight);
                    }));
    many = std::min(many, seconds_of([&] { twinkle::kernels::grouped_linear(x, groups); }));
  }
  const double work = 1e-9 * static_cast<double>(s.experts * rows * s.outputs * s.inputs);
  std::printf(
      "%-8s %-8s %4ld rows an expert: dense %7.1f, one by one %7.1f, grouped %7.1f G "
      "multiply-adds/s, %.2f and %.2f\n",
      type == at::kFloat ? "float32" : "bfloat16", transposed ? "backward" : "forward", rows,
      work / one, work / each, work / many, one / many, each / many);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::strtoll(argv[i], nullptr, 10) : otherwise;
  };
  const Sizes s{number(1, 32), number(2, 512), number(3, 512), number(4, 20)};
  std::printf("%ld experts of %ld outputs and %ld inputs, %d threads\n", s.experts, s.outputs,
              s.inputs, at::get_num_threads());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool transposed : {false, true}) {
      for (const int64_t rows : {16, 64, 256}) compare(s, rows, type, transposed);
    }
  }
}
