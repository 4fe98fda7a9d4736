// Products whose rows do not know each other: a row of x W^T has the same bits whatever the number
// and the place of the other rows, and with one thread or with many. Those of kernels/linear are so
// by construction. The library keeps that promise for some numbers of rows, and often only on one
// thread. So it is asked for parts, each computed by one thread, whose numbers of rows are few
// enough for each to be tried, on seeded data, once for a shape. Knows no tenants. Any thread. N
// rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace twinkle::nn {

// One product, as the library sees it.
struct Product {
  at::ScalarType type;
  int64_t inputs, outputs;
  bool transposed = false;  // the weight is stored as [I, O]: the backward of a linear
  bool bias = false;
  at::Device device = at::kCPU;

  static Product of(const at::Tensor& weight_OI, const at::Tensor& bias);
};

// How a product is cut into parts.
struct RowPlan {
  std::vector<int64_t> sizes;  // rising: rows that a part may have. No other number is ever asked
                               // for; what is left over is padded with rows of zeros
  int64_t part_outputs = 0;    // outputs of a part, but of the last; 0: by their number
};

// out = x W^T + bias, `bias` undefined for none. Called on any thread, several at a time.
using Library = std::function<void(at::Tensor& out_NO, const at::Tensor& x_NI,
                                   const at::Tensor& weight_OI, const at::Tensor& bias)>;

// x W^T + bias, `bias` undefined for none, of any number of rows.
using Ours = std::function<at::Tensor(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                      const at::Tensor& bias)>;

// Tries each loop and rest of a product whose rows are independent by construction, with `threads`
// and with 1. Of a side above 3,840, a part. Error kInternal: a row has other bits in other
// company.
void try_rows(Product product, int threads, const Ours& product_of);

// The sizes, of 1, 2, 4, 8, 16, 32, 48, ... to 256 (128 for a large weight; on a device 512, 768,
// ... 2,048, 4,096, 8,192 as well), whose rows have the bits that they have in the largest, tried
// in several places, with `threads` and with 1, on operands whose sums cancel, so that another
// order of summation shows in almost every output. Of a weight that is cut into more than three
// parts, on two of them and the last. Error kInternal: not even single rows repeat themselves.
RowPlan prove_rows(const Product& product, int threads, const Library& library);

// x W^T + bias in parts of those sizes and, on a CPU, of up to 512 outputs, for `threads` or more
// of them where there are as many rows; a device takes as many rows at once as the plan allows.
// Which parts there are changes no bit.
at::Tensor multiply_in_parts(const RowPlan& plan, const at::Tensor& x_NI,
                             const at::Tensor& weight_OI, const at::Tensor& bias, int threads,
                             const Library& library);

// prove_rows for torch's product, with 2 threads or at::get_num_threads(), whichever is more; or,
// where the product is one of kernels/linear, whose rows are independent by construction, a trial
// that it is so, without sizes. Tried once in a process.
RowPlan row_plan(const Product& product);

// True if row_plan has tested this product in this process, with as many threads.
bool is_tried(const Product& product);

// x W^T + b by the fastest product: kernels/linear's where it is fast, else torch's.
at::Tensor plain_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                        const at::Tensor& bias);

// x W^T + b for any number of rows, by row_plan. `weight_OI` may be a transposed view.
at::Tensor batch_invariant_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                  const at::Tensor& bias = {});

// sum += a b with the same bits on any number of threads: the gradient of a weight, whose long sums
// the library would share between threads. sum [N, O] contiguous, a [N, I], b [I, O]; nothing is
// promised about its rows.
void add_thread_invariant_product(at::Tensor& sum_NO, const at::Tensor& a_NI,
                                  const at::Tensor& b_IO);

}  // namespace twinkle::nn
