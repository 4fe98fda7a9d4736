// The targets of a head by row. A row's softmax is computed once, with its first target; other
// targets read their log-probability from it, and their entries of the gradient are written into
// it. R scored rows, N >= R targets.
#pragma once
#include <span>
#include <vector>

#include "twinkle/kernels/softmax.h"
#include "twinkle/nn/head/head.h"

namespace twinkle::nn {

class RowTargets {
 public:
  explicit RowTargets(const Targets& all);

  const Targets& lead() const { return lead_; }  // [R] with each first target
  int64_t first(int64_t row) const {
    return first_[static_cast<size_t>(row)];
  }  // [R + 1] in all targets

  // Appends the log-probabilities of the targets of rows [begin, begin + n) of logits [n, V], and
  // the entropies, if wanted, given the statistics of lead()'s.
  void append(int64_t begin, const at::Tensor& logits, std::span<const kernels::RowStats> stats,
              bool entropy, HeadOutput& out) const;
  // In place, d loss / d logits of these rows. Of their targets: log-probabilities, and d loss / d
  // of them and of their entropies (empty: 0).
  void logits_grad_(int64_t begin, at::Tensor& logits, std::span<const kernels::RowStats> stats,
                    std::span<const float> logprobs, std::span<const float> grad,
                    std::span<const float> entropy_grad) const;

 private:
  float temperature(int64_t row) const;

  Targets lead_;
  std::vector<int64_t> first_;
  std::vector<int32_t> ids_;  // [N]
};

}  // namespace twinkle::nn
