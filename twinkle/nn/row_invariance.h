// Products whose rows do not know each other: a row of x W^T has the same bits whatever the number
// and the place of the other rows, and with one thread or with many. The library keeps that promise
// only from some number of rows on, for some shapes never; what makes it hold is found by trial on
// seeded data, once for a shape. Knows no tenants. Any thread. N rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace twinkle::nn {

// What one product is like for the library.
struct Product {
  at::ScalarType type;
  int64_t inputs, outputs;
  bool transposed = false;  // the weight lies in memory as [I, O]: the backward of a linear
  bool bias = false;

  static Product of(const at::Tensor& weight_OI, const at::Tensor& bias);
};

// How a product is computed so that its rows' bits hold.
struct RowPlan {
  int64_t least = 1;  // rows; fewer are padded with rows of zeros to as many
  int64_t tile = 0;   // rows; 0: none. Else the product is made of padded pieces of just so many
  int64_t most = 1;   // rows; more are cut into pieces of so many and a rest: larger products than
                      // these are never asked of the library, so they need no proof
};

// x W^T + bias, `bias` undefined for none.
using Library = std::function<at::Tensor(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                         const at::Tensor& bias)>;

// Tries `library` with 1 to 1024 rows (512 for a large vocabulary), in several places,
// with 1 thread and with `threads`, on operands whose sums cancel, so that another order of
// summation shows in almost every output. Error kInternal: neither padding nor tiles help.
RowPlan prove_rows(const Product& product, int threads, const Library& library);

// `multiply`, a product of rows [N, I], as the plan wants it done.
at::Tensor multiply_by(const RowPlan& plan, const at::Tensor& x_NI,
                       const std::function<at::Tensor(const at::Tensor& x_NI)>& multiply);

// prove_rows for plain_linear with 2 threads or at::get_num_threads(), whichever is more. Tried
// once in a process.
RowPlan row_plan(const Product& product);

// x W^T + b by the fastest product: kernels::linear_bf16 where it is fast, else torch's.
at::Tensor plain_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                        const at::Tensor& bias);

// x W^T + b for any number of rows, by row_plan. `weight_OI` may be a transposed view.
at::Tensor row_invariant_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                const at::Tensor& bias = {});

}  // namespace twinkle::nn
