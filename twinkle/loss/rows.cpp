#include "twinkle/loss/rows.h"

#include <utility>

namespace twinkle::loss {
namespace {

template <class T>
double run_as(const Inputs& in, const std::vector<double>& weights, const RowLoss& loss, T* grad) {
  const T* logprobs = in.logprobs.const_data_ptr<T>();
  double sum = 0;
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    double of_sequence = 0;
    for (int64_t t = in.cu_seqlens[s]; t < in.cu_seqlens[s + 1]; ++t) {
      const double w = weights[static_cast<size_t>(t)];
      const Term term = w == 0 ? Term{} : loss.term(t, logprobs[t]);
      of_sequence += w * term.value;
      grad[t] = static_cast<T>(w * term.grad);
    }
    sum += of_sequence;
  }
  return sum;
}

}  // namespace

std::vector<double> doubles(const at::Tensor& values) {
  const at::Tensor wide = values.to(at::kDouble);
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

std::vector<double> doubles(const Inputs& inputs, const std::string& extra, double otherwise) {
  const auto it = inputs.extras.find(extra);
  if (it != inputs.extras.end()) return doubles(it->second);
  return std::vector<double>(static_cast<size_t>(inputs.weights.numel()), otherwise);
}

Output run_rows(const Inputs& in, const RowLoss& loss) {
  Output out{.grad = at::empty_like(in.logprobs), .num_tokens = loss.num_tokens};
  const std::vector<double> weights = doubles(in.weights);
  out.loss = in.logprobs.scalar_type() == at::kDouble
                 ? run_as(in, weights, loss, out.grad.mutable_data_ptr<double>())
                 : run_as(in, weights, loss, out.grad.mutable_data_ptr<float>());
  out.loss += through_entropies(in, loss.entropy_grad);
  return out;
}

TokenGrad prepare_rows(const Inputs& in, const RowLoss& loss) {
  return [weights = doubles(in.weights), term = loss.term](
             int64_t begin, std::span<const float> logprobs, std::span<float> grad) {
    for (size_t i = 0; i < logprobs.size(); ++i) {
      const double w = weights[static_cast<size_t>(begin) + i];
      const Term of_row = w == 0 ? Term{} : term(begin + static_cast<int64_t>(i), logprobs[i]);
      grad[i] = static_cast<float>(w * of_row.grad);
    }
  };
}

std::vector<std::vector<size_t>> scored_rows(const Inputs& in) {
  const float* weights = in.weights.const_data_ptr<float>();
  std::vector<std::vector<size_t>> out(in.cu_seqlens.size() - 1);
  for (size_t s = 0; s < out.size(); ++s) {
    for (int64_t t = in.cu_seqlens[s]; t < in.cu_seqlens[s + 1]; ++t)
      if (weights[t] != 0) out[s].push_back(static_cast<size_t>(t));
  }
  return out;
}

double through(const Inputs& in, const at::Tensor& of_rows, const at::Tensor& of_values) {
  const std::vector<double> grad = doubles(of_rows), values = doubles(of_values);
  double sum = 0;
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    double of_sequence = 0;
    for (auto t = static_cast<size_t>(in.cu_seqlens[s]);
         t < static_cast<size_t>(in.cu_seqlens[s + 1]); ++t)
      if (grad[t] != 0) of_sequence += grad[t] * values[t];
    sum += of_sequence;
  }
  return sum;
}

double through_entropies(const Inputs& in, const at::Tensor& entropy_grad) {
  return entropy_grad.defined() ? through(in, entropy_grad, in.entropies) : 0;
}

}  // namespace twinkle::loss
