// A sequence as one vector, for retrieval: the hidden state h of its last token divided by its L2
// norm, e = h / max(|h|, 1e-12), as last-token pooling and torch.nn.functional.normalize have it.
// Every row is summed in the order of its entries, in float64, so that its bits do not depend on
// the others. T tokens of all sequences, D width, S pooled sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twinkle::nn {

// hidden [T, D] of any floating dtype and device; last: [S] rows, each 0 <= row < T. Returns
// [S, D] float64 on the CPU.
at::Tensor pool_last(const at::Tensor& hidden_TD, const std::vector<int64_t>& last);

// d loss / d h = (g - e (e . g)) / |h| of the pooled rows, given g = d loss / d e [S, D] float64 on
// the CPU, is added to dhidden [T, D].
void add_pool_last_grad(at::Tensor& dhidden_TD, const at::Tensor& hidden_TD,
                        const std::vector<int64_t>& last, const at::Tensor& grad_SD);

}  // namespace twinkle::nn
