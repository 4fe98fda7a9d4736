#include "twinkle/loss/reduce.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

namespace twinkle::loss {
namespace {

// out[s] = sum of x over rows of s; its derivative hands each row its sequence's.
class SequenceSums : public torch::autograd::Function<SequenceSums> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& values,
                            const std::vector<int64_t>& cu_seqlens) {
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    ctx->saved_data["dtype"] = values.scalar_type();
    const at::Tensor x = values.to(at::kDouble).contiguous();
    at::Tensor out = at::zeros({static_cast<int64_t>(cu_seqlens.size()) - 1}, at::kDouble);
    const double* from = x.const_data_ptr<double>();
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s)
      out.mutable_data_ptr<double>()[s] =
          std::accumulate(from + cu_seqlens[s], from + cu_seqlens[s + 1], 0.0);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    std::vector<int64_t> lengths(cu_seqlens.size() - 1);
    std::transform(cu_seqlens.begin() + 1, cu_seqlens.end(), cu_seqlens.begin(), lengths.begin(),
                   std::minus<>());
    return {at::repeat_interleave(grads[0], at::tensor(lengths, at::kLong), 0)
                .to(ctx->saved_data["dtype"].toScalarType()),
            at::Tensor()};
  }
};

}  // namespace

std::vector<double> sequence_sums(std::span<const float> values,
                                  std::span<const int64_t> cu_seqlens) {
  std::vector<double> sums;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    sums.push_back(
        std::accumulate(values.begin() + cu_seqlens[s], values.begin() + cu_seqlens[s + 1], 0.0));
  return sums;
}

double total(std::span<const float> values, std::span<const int64_t> cu_seqlens) {
  const std::vector<double> sums = sequence_sums(values, cu_seqlens);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

at::Tensor sequence_sums(const at::Tensor& values, const std::vector<int64_t>& cu_seqlens) {
  return SequenceSums::apply(values, cu_seqlens);
}

double num_scored(const at::Tensor& weights) {
  const auto w = elements(weights);
  return static_cast<double>(std::count_if(w.begin(), w.end(), [](float x) { return x != 0; }));
}

}  // namespace twinkle::loss
