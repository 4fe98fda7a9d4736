// The rows of a batch in the order of their experts, what is computed of them row by row between
// the experts' products, and the way back. Over tensors, no autograd, on the CPU; bfloat16 and
// float32 are computed in float32, float64 in float64; a row's bits depend on that row alone, or on
// its token's. T tokens, k experts of each, R = T k routed rows, E experts, D width, F inner width.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twinkle::kernels {

// Routed rows [offsets[e], offsets[e + 1]) are expert e's, in the order of their tokens.
struct RoutedRows {
  std::vector<int64_t> offsets;  // [E + 1]
  std::vector<int64_t> tokens;   // [R] of each routed row
  std::vector<int64_t> places;   // [T k] the routed row of token t's expert number j, at t k + j
  int64_t top_k = 0;

  int64_t num_tokens() const { return std::ssize(places) / top_k; }
  int64_t num_rows() const { return std::ssize(tokens); }
};

// For ids [T, k] int32, each in [0, E). Error kInvalid: another type.
RoutedRows routed_rows(const at::Tensor& ids, int64_t num_experts);

// [R, D]: each routed row is its token's of x [T, D].
at::Tensor gather_rows(const at::Tensor& x, const RoutedRows& rows);

// [T, D]: the sum of each token's routed rows of y [R, D], in the order of its ids, rounded once.
at::Tensor sum_rows(const at::Tensor& y, const RoutedRows& rows);

// [R, F]: weights[t, j] silu(gate) up, rounded once, of gate_up [R, 2 F], a row's gates before its
// ups (Shazeer 2020, SwiGLU). weights [T, k] float32, float64 for float64.
at::Tensor routed_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                         const RoutedRows& rows);

struct RoutedSwigluGrads {
  at::Tensor gate_up;  // [R, 2 F]
  at::Tensor weights;  // [T, k]
};
RoutedSwigluGrads routed_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up,
                                         const at::Tensor& weights, const RoutedRows& rows);

// The activation of gpt-oss (OpenAI 2025, section 2.2): (u + 1) g sigmoid(alpha g), with g =
// min(gate, limit) and u = up, held from -limit to limit.
struct ClampedSwiglu {
  double limit = 7, alpha = 1.702;

  bool operator==(const ClampedSwiglu&) const = default;
};

// [R, F]: weights[t, j] times it, rounded once, of gate_up [R, 2 F], in which a gate and its up
// take turns, plus the expert's bias [E, 2 F] of any float type.
at::Tensor routed_clamped_swiglu(const at::Tensor& gate_up, const at::Tensor& bias,
                                 const at::Tensor& weights, const RoutedRows& rows,
                                 const ClampedSwiglu& options);
// The bias' gradient is the sum of gate_up's over each expert's rows.
RoutedSwigluGrads routed_clamped_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up,
                                                 const at::Tensor& bias, const at::Tensor& weights,
                                                 const RoutedRows& rows,
                                                 const ClampedSwiglu& options);

// As sum_rows(), of each routed row plus weights[t, j] times its expert's bias [E, D].
at::Tensor sum_biased_rows(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& weights,
                           const RoutedRows& rows);
// [T, k]: what the biases add to d loss / d weights, given the gradient of each routed row [R, D].
at::Tensor biased_rows_backward(const at::Tensor& grad, const at::Tensor& bias,
                                const RoutedRows& rows);

}  // namespace twinkle::kernels
