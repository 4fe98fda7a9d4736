// Sums over tokens in one order, so that they do not depend on threads or on what else is in the
// batch: each sequence from its first row to its last in double, then the sequences in order.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

namespace twinkle::loss {

// [S] sums of `values` [N] over the rows of each sequence.
std::vector<double> sequence_sums(std::span<const float> values,
                                  std::span<const int64_t> cu_seqlens);

double total(std::span<const float> values, std::span<const int64_t> cu_seqlens);

// The same for formulas that autograd differentiates: values [N] float32 or float64 -> [S] float64.
at::Tensor sequence_sums(const at::Tensor& values, const std::vector<int64_t>& cu_seqlens);

// The number of rows whose weight is not 0.
double num_scored(const at::Tensor& weights);

// A contiguous float32 CPU tensor's elements.
inline std::span<const float> elements(const at::Tensor& t) {
  return {t.const_data_ptr<float>(), static_cast<size_t>(t.numel())};
}

}  // namespace twinkle::loss
