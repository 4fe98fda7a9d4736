// The statistics of a router's choices for an auxiliary loss, and the gradient that it
// adds to the router's. Over tensors, no autograd, on the CPU; scores are softmax's, float32 or
// float64. Each sequence's rows are taken alone and in their order: its numbers depend on nothing
// else. T tokens, E experts, k of them for a token, S sequences, of which s is rows cu_seqlens[s]
// ..< cu_seqlens[s + 1].
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace twinkle::kernels {

struct ChoiceSums {
  std::vector<double> counts;  // [S E] tokens of the sequence that chose the expert
  std::vector<double> scores;  // [S E] the sum of the expert's scores over the sequence's tokens
};

// For scores [T, E] and ids [T, k] int32. Error kInvalid: other types.
ChoiceSums choice_sums(const at::Tensor& scores, const at::Tensor& ids,
                       std::span<const int64_t> cu_seqlens);

// Adds to dlogits [T, E] the gradient of a term whose derivative by the score of expert e is
// slopes[s E + e] for every token of sequence s: p_e (slope_e - sum over f of p_f slope_f). Rows of
// a sequence whose slopes are all 0 are not touched.
void add_slopes(const at::Tensor& scores, std::span<const double> slopes,
                std::span<const int64_t> cu_seqlens, const at::Tensor& dlogits);

}  // namespace twinkle::kernels
