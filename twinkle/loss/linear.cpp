// A loss whose derivative is given: sum of grad * log p(target) + entropy_grad * entropy over rows
// with weight != 0. It carries a loss that was computed elsewhere, by its gradient in extras "grad"
// [N] and, where it looks at entropies, "entropy_grad" [N]; neither where no row is scored, as of a
// loss of embeddings alone.
// Options: num_tokens (default 1, of a mean), what a step divides by.
#include <cmath>

#include "twinkle/loss/loss.h"
#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {
namespace {

double parse_num_tokens(const Json& json) {
  check_known(json, "LinearLoss", {"num_tokens"});
  const auto num_tokens = get_or<double>(json, "num_tokens", 1);
  require(num_tokens >= 0 && std::isfinite(num_tokens), Code::kInvalid,
          "loss: num_tokens of LinearLoss is ", num_tokens, ", it must be at least 0 and finite");
  return num_tokens;
}

at::Tensor of_rows(const Inputs& in, const std::string& name) { return in.extras.at(name); }

at::Tensor entropy_grad_of(const Inputs& in, const Json&) {
  if (!in.extras.contains("entropy_grad")) return {};
  return at::where(in.weights != 0, of_rows(in, "entropy_grad"), 0.0f);
}

TokenGrad prepare_rows(const Inputs& in, const Json&) {
  if (in.weights.numel() == 0) return [](int64_t, std::span<const float>, std::span<float>) {};
  const at::Tensor given = of_rows(in, "grad");
  return [given, weights = in.weights](int64_t begin, std::span<const float> logprobs,
                                       std::span<float> grad) {
    const float* g = given.const_data_ptr<float>() + begin;
    const float* w = weights.const_data_ptr<float>() + begin;
    for (size_t i = 0; i < logprobs.size(); ++i) grad[i] = w[i] != 0 ? g[i] : 0;
  };
}

// Sum of grad * value, one sequence after the other; where the grad is 0 the value does not count.
double through(std::span<const float> grad, std::span<const float> values,
               const std::vector<int64_t>& cu_seqlens) {
  double sum = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    double of_sequence = 0;
    for (auto t = static_cast<size_t>(cu_seqlens[s]); t < static_cast<size_t>(cu_seqlens[s + 1]);
         ++t) {
      if (grad[t] != 0) of_sequence += static_cast<double>(grad[t]) * values[t];
    }
    sum += of_sequence;
  }
  return sum;
}

Output run_all(const Inputs& in, const Json& json) {
  const auto logprobs = elements(in.logprobs);
  Output out{.grad = at::empty_like(in.logprobs), .num_tokens = parse_num_tokens(json)};
  const std::span<float> grad(out.grad.mutable_data_ptr<float>(), logprobs.size());
  prepare_rows(in, json)(0, logprobs, grad);
  out.loss = through(grad, logprobs, in.cu_seqlens);
  const at::Tensor of_entropy = entropy_grad_of(in, json);
  if (of_entropy.defined())
    out.loss += through(elements(of_entropy), elements(in.entropies), in.cu_seqlens);
  return out;
}

}  // namespace

Loss linear() {
  return {.name = "linear",
          .class_name = "LinearLoss",
          .extras = {{.name = "grad"}, {.name = "entropy_grad", .optional = true}},
          .check = [](const Json& json) { parse_num_tokens(json); },
          .run = run_all,
          .prepare = prepare_rows,
          .entropy_grad = entropy_grad_of};
}

}  // namespace twinkle::loss
