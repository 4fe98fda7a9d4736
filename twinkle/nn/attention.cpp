#include "twinkle/nn/attention.h"

#include <ATen/ATen.h>

#include <limits>

namespace twinkle::nn {
namespace {

at::Tensor heads_first(const at::Tensor& x, int64_t begin, int64_t end, int64_t repeat) {
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return x.slice(0, begin, end).to(wide).transpose(0, 1).repeat_interleave(repeat, 0);
}

}  // namespace

at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                     const Packing& packing, const AttentionOptions& options) {
  std::vector<at::Tensor> parts;
  for (int64_t s = 0; s < packing.num_sequences(); ++s) {
    const int64_t begin = packing.cu_seqlens[s], end = packing.cu_seqlens[s + 1];
    const int64_t group = q_THd.size(1) / k_TKd.size(1);
    const auto q = heads_first(q_THd, begin, end, 1), k = heads_first(k_TKd, begin, end, group);
    const auto v = heads_first(v_TKd, begin, end, group);
    const auto index = at::arange(end - begin);
    const auto ahead = index.unsqueeze(0) - index.unsqueeze(1);
    auto hidden = ahead > 0;
    if (options.window > 0) hidden = hidden.logical_or(ahead <= -options.window);
    const auto scores = (at::matmul(q, k.transpose(1, 2)) * options.scale)
                            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    parts.push_back(at::matmul(scores.softmax(-1), v).transpose(0, 1));
  }
  return at::cat(parts).to(q_THd.scalar_type());
}

}  // namespace twinkle::nn
