// Losses that are sums over rows, and what they share. Of most of them a row's part is a function
// of the row alone, known before any other row's log-probability is; of the others, of its
// sequence. In double; a row's weight, of either sign, multiplies its part.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/loss/loss.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {

struct Term {
  double value = 0;
  double grad = 0;  // d value / d logprob
};

// A loss of rows. Another type with of(), num_tokens and factor can take its place, which may
// compute in the type of the log-probabilities: of() is given the weight in it, too.
struct RowLoss {
  std::function<Term(int64_t row, double logprob)> term;  // without the row's weight
  double num_tokens = 0;                                  // as of Output
  at::Tensor entropy_grad = {};                           // [N] or undefined, as of Loss
  double factor = 1;                                      // factor of the sum of the rows' values

  Term of(int64_t row, double weight, double logprob) const;
};

// A loss whose rows' derivatives depend on their sequence's other rows: of the whole operation.
struct Sequence {
  size_t number = 0;
  std::vector<size_t> scored;  // its rows with a weight, in order
};
struct SequenceLoss {
  // The sequence's part of the loss; adds d loss / d logprobs of its rows to `grad` [N].
  std::function<double(const Sequence& sequence, const std::vector<double>& logprobs,
                       std::vector<double>& grad)>
      add;
  double num_tokens = 0;
  at::Tensor entropy_grad = {};
};

// Any of an Inputs' tensors, float32 or float64.
std::vector<double> doubles(const at::Tensor& values);
// One of the extras; where it is not given, `otherwise` for every row.
std::vector<double> doubles(const Inputs& inputs, const std::string& extra, double otherwise);
// In the type of the inputs' log-probabilities.
at::Tensor gradient_of(const Inputs& inputs, const std::vector<double>& grad);

Output run_sequences(const Inputs& inputs, const SequenceLoss& loss);
// Each sequence's scored rows, in order.
std::vector<std::vector<size_t>> scored_rows(const Inputs& inputs);
// Sum of grad * value over rows, where the gradient is not 0.
double through(const Inputs& inputs, const at::Tensor& grad, const at::Tensor& values);
// The same of the inputs' entropies; 0 without a gradient.
double through_entropies(const Inputs& inputs, const at::Tensor& entropy_grad);

template <class Rows>
constexpr bool kReadsEntropies = requires(const Rows& rows) { rows.entropy_grad; };

template <class Rows>
Output run_rows(const Inputs& in, const Rows& rows) {
  Output out{.grad = at::empty_like(in.logprobs), .num_tokens = rows.num_tokens};
  const auto weights = elements(in.weights);
  const auto run_in = [&]<class Real>(Real) {
    const auto* logprobs = in.logprobs.const_data_ptr<Real>();
    auto* grad = out.grad.mutable_data_ptr<Real>();
    return sum_in_order(in.cu_seqlens, [&](int64_t t) {
      const Term part = rows.of(t, static_cast<Real>(weights[t]), logprobs[t]);
      grad[t] = static_cast<Real>(part.grad);
      return part.value;
    });
  };
  out.loss = rows.factor * (in.logprobs.scalar_type() == at::kDouble ? run_in(0.0) : run_in(0.0F));
  if constexpr (kReadsEntropies<Rows>) out.loss += through_entropies(in, rows.entropy_grad);
  return out;
}

template <class Rows>
TokenGrad prepare_rows(const Inputs& in, Rows rows) {
  return [weights = in.weights, rows = std::move(rows)](
             int64_t begin, std::span<const float> logprobs, std::span<float> grad) {
    const auto w = elements(weights).subspan(static_cast<size_t>(begin), logprobs.size());
    for (size_t i = 0; i < logprobs.size(); ++i)
      grad[i] =
          static_cast<float>(rows.of(begin + static_cast<int64_t>(i), w[i], logprobs[i]).grad);
  };
}

// The functions of a Loss from one that makes the RowLoss of its inputs and options.
template <auto make>
Loss of_rows(Loss loss) {
  loss.run = [](const Inputs& in, const Json& json) { return run_rows(in, make(in, json)); };
  loss.prepare = [](const Inputs& in, const Json& json) {
    return prepare_rows(in, make(in, json));
  };
  if constexpr (kReadsEntropies<decltype(make({}, {}))>)
    loss.entropy_grad = [](const Inputs& in, const Json& json) {
      return make(in, json).entropy_grad;
    };
  loss.doubles = true;
  return loss;
}

// The same of a SequenceLoss, which is made without log-probabilities, too.
template <SequenceLoss (*make)(const Inputs&, const Json&)>
Loss of_sequences(Loss loss) {
  loss.run = [](const Inputs& in, const Json& json) { return run_sequences(in, make(in, json)); };
  loss.entropy_grad = [](const Inputs& in, const Json& json) {
    return make(in, json).entropy_grad;
  };
  loss.doubles = true;
  return loss;
}

}  // namespace twinkle::loss
