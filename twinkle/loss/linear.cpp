// A loss whose derivative is given: sum of grad * log p(target) + entropy_grad * entropy over rows
// with weight != 0. It carries a loss that was computed elsewhere, by its gradient in extras "grad"
// [N] and, where it looks at entropies, "entropy_grad" [N]; neither where no row is scored, as of a
// loss of embeddings alone.
// Options: num_tokens (default 1, of a mean), what a step divides by.
#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

struct Options {
  double num_tokens = 1;

  static constexpr auto fields() {
    return std::tuple{
        option("num_tokens", &Options::num_tokens, at_least(0), "what a step divides by")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "LinearLoss"); }

at::Tensor entropy_grad_of(const Inputs& in, const Json&) {
  if (!in.extras.contains("entropy_grad")) return {};
  return at::where(in.weights != 0, in.extras.at("entropy_grad"), 0.0f);
}

TokenGrad prepare_rows(const Inputs& in, const Json&) {
  if (in.weights.numel() == 0) return [](int64_t, std::span<const float>, std::span<float>) {};
  const at::Tensor given = in.extras.at("grad");
  return [given, weights = in.weights](int64_t begin, std::span<const float> logprobs,
                                       std::span<float> grad) {
    const float* g = given.const_data_ptr<float>() + begin;
    const float* w = weights.const_data_ptr<float>() + begin;
    for (size_t i = 0; i < logprobs.size(); ++i) grad[i] = w[i] != 0 ? g[i] : 0;
  };
}

Output run_all(const Inputs& in, const Json& json) {
  Output out{.grad = at::empty_like(in.logprobs), .num_tokens = parse(json).num_tokens};
  const auto n = static_cast<size_t>(in.logprobs.numel());
  prepare_rows(in, json)(0, elements(in.logprobs), {out.grad.mutable_data_ptr<float>(), n});
  out.loss = through(in, out.grad, in.logprobs);
  out.loss += through_entropies(in, entropy_grad_of(in, json));
  return out;
}

}  // namespace

Loss linear() {
  return {.name = "linear",
          .class_name = "LinearLoss",
          .extras = {{.name = "grad"}, {.name = "entropy_grad", .optional = true}},
          .check = checked<parse>,
          .run = run_all,
          .prepare = prepare_rows,
          .entropy_grad = entropy_grad_of};
}

}  // namespace twinkle::loss
