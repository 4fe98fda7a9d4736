#include "twinkle/loss/rows.h"

namespace twinkle::loss {

Term RowLoss::of(int64_t row, double weight, double logprob) const {
  if (weight == 0) return {};
  const Term each = term(row, logprob);
  return {weight * each.value, weight * each.grad};
}

std::vector<double> doubles(const at::Tensor& values) {
  const at::Tensor wide = values.to(at::kDouble);
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

std::vector<double> doubles(const Inputs& inputs, const std::string& extra, double otherwise) {
  const auto it = inputs.extras.find(extra);
  if (it != inputs.extras.end()) return doubles(it->second);
  return std::vector<double>(static_cast<size_t>(inputs.weights.numel()), otherwise);
}

at::Tensor gradient_of(const Inputs& in, const std::vector<double>& grad) {
  return at::tensor(grad, at::kDouble).to(in.logprobs.scalar_type());
}

Output run_sequences(const Inputs& in, const SequenceLoss& loss) {
  const std::vector<double> logprobs = doubles(in.logprobs);
  std::vector<double> grad(logprobs.size());
  Output out{.num_tokens = loss.num_tokens};
  Sequence sequence;
  for (auto& scored : scored_rows(in)) {
    sequence.scored = std::move(scored);
    out.loss += loss.add(sequence, logprobs, grad);
    ++sequence.number;
  }
  out.loss += through_entropies(in, loss.entropy_grad);
  out.grad = gradient_of(in, grad);
  return out;
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
  return sum_in_order(in.cu_seqlens,
                      [&](int64_t t) { return grad[t] != 0 ? grad[t] * values[t] : 0; });
}

double through_entropies(const Inputs& in, const at::Tensor& entropy_grad) {
  return entropy_grad.defined() ? through(in, entropy_grad, in.entropies) : 0;
}

}  // namespace twinkle::loss
