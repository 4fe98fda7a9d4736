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

// The sum over rows of of_row(row), in this order.
template <class OfRow>
double sum_in_order(const std::vector<int64_t>& cu_seqlens, const OfRow& of_row) {
  double sum = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    double of_sequence = 0;
    for (int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) of_sequence += of_row(t);
    sum += of_sequence;
  }
  return sum;
}

// The number of rows whose weight is not 0.
double num_scored(const at::Tensor& weights);

// A contiguous float32 CPU tensor's elements.
inline std::span<const float> elements(const at::Tensor& t) {
  return {t.const_data_ptr<float>(), static_cast<size_t>(t.numel())};
}

}  // namespace twinkle::loss
